//! The pictures of the measurements, as SVG.

use std::fmt::Write;

use crate::campaign::{Disk, Pair};
use crate::measure;
use crate::table::{self, Row, Spread};
use crate::workload::Workload;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 170.0;
const RIGHT: f64 = 110.0;
const BAR: f64 = 20.0;
const TOP: f64 = 50.0;
/// A longer bar is cut off, and its number shows its value.
const LONGEST: f64 = 6.0;

const OURS: &str = "#1f6feb";
const FLOORS: &str = "#8c959f";
const OTHERS: &str = "#d4a72c";
const COLORS: [&str; 10] =
    ["#1f6feb", "#cf222e", "#1a7f37", "#9a6700", "#8250df", "#bf3989", "#0a7ea4", "#57606a", "#bc4c00", "#4d2d00"];

/// A picture and the name of its file.
pub(crate) struct Picture {
    pub(crate) file: String,
    pub(crate) title: String,
    pub(crate) svg: String,
}

/// One picture for each workload and server, and one for the growth with the number of waiters.
pub(crate) fn pictures(pairs: &[Pair]) -> Vec<Picture> {
    let mut pictures = Vec::new();
    for disk in [Disk::Nofsync, Disk::Fsync] {
        let workloads = table::workloads(pairs, disk);
        pictures.extend(workloads.iter().map(|&workload| bars(pairs, disk, workload)));
        pictures.extend(growth(pairs, disk, &workloads));
    }
    pictures
}

fn bars(pairs: &[Pair], disk: Disk, workload: Workload) -> Picture {
    let (what, figure) = measure::headline(workload);
    let rows = table::rows(pairs, disk, workload);
    let bars: Vec<(&Row<'_>, Spread)> = rows.iter().map(|row| (row, row.ratio(figure))).collect();
    let bars: Vec<_> = bars.into_iter().filter(|(_, spread)| spread.median.is_finite()).collect();
    let most = bars.iter().map(|(_, spread)| spread.median).fold(1.0, f64::max).min(LONGEST);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let height = TOP + bars.len() as f64 * BAR + 20.0;
    let title = format!("{workload}: {what} × floor, server {}", disk.name());
    let mut svg = begin(height, &title);
    for (index, (row, spread)) in bars.iter().enumerate() {
        let y = TOP + index as f64 * BAR;
        let length = spread.median.min(most) * scale;
        let color = color_of(row.peer);
        text(&mut svg, LEFT - 8.0, y + 14.0, "end", row.peer);
        let _ =
            writeln!(svg, r#"<rect x="{LEFT}" y="{:.1}" width="{length:.1}" height="14" fill="{color}"/>"#, y + 3.0);
        let (least, last) = (LEFT + spread.least.min(most) * scale, LEFT + spread.most.min(most) * scale);
        line(&mut svg, (least, y + 10.0), (last, y + 10.0), "#24292f");
        text(&mut svg, LEFT + length.max(last - LEFT) + 6.0, y + 14.0, "start", &format!("{:.2}", spread.median));
    }
    let floor = LEFT + scale;
    line(&mut svg, (floor, TOP - 4.0), (floor, height - 16.0), "#cf222e");
    svg.push_str("</svg>\n");
    Picture { file: format!("{}-{}.svg", workload.name(), disk.name()), title, svg }
}

/// The time per acquisition over the number of waiters, with logarithmic axes.
fn growth(pairs: &[Pair], disk: Disk, workloads: &[Workload]) -> Option<Picture> {
    let counts: Vec<(usize, Workload)> = workloads
        .iter()
        .filter_map(
            |&workload| if let Workload::ManyWaiters(count) = workload { Some((count, workload)) } else { None },
        )
        .collect();
    let (&(fewest, first), &(most, _)) = (counts.first()?, counts.last().filter(|_| counts.len() > 1)?);
    let peers: Vec<&str> = table::rows(pairs, disk, first).iter().map(|row| row.peer).collect();
    let of = |peer: &str, workload| table::rows(pairs, disk, workload).into_iter().find(|row| row.peer == peer);
    let curves: Vec<(&str, Vec<(usize, f64)>)> = peers
        .into_iter()
        .map(|peer| (peer, counts.iter().filter_map(|&(n, w)| Some((n, of(peer, w)?.median(|of| of.time)))).collect()))
        .collect();
    let times =
        || curves.iter().flat_map(|(_, points)| points.iter().map(|&(_, time)| time)).filter(|time| time.is_finite());
    let (low, high) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let height = 460.0;
    let part = |value: f64, from: f64, to: f64| (value / from).ln() / (to / from).ln().max(f64::MIN_POSITIVE);
    let x = |count: usize| LEFT / 2.0 + part(count as f64, fewest as f64, most as f64) * (WIDTH - LEFT / 2.0 - 180.0);
    let y = |time: f64| height - 40.0 - part(time, low, high) * (height - TOP - 50.0);
    let title = format!("W3: µs per acquisition over the number of waiters, server {}", disk.name());
    let mut svg = begin(height, &title);
    for &(count, _) in &counts {
        text(&mut svg, x(count), height - 12.0, "middle", &count.to_string());
        line(&mut svg, (x(count), TOP - 10.0), (x(count), height - 30.0), "#d0d7de");
    }
    for time in
        [100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4].into_iter().filter(|time| (low..=high).contains(time))
    {
        text(&mut svg, LEFT / 2.0 - 8.0, y(time) + 4.0, "end", &format!("{time:.0}"));
        line(&mut svg, (LEFT / 2.0, y(time)), (WIDTH - 180.0, y(time)), "#d0d7de");
    }
    let mut label_below = TOP;
    let mut ends: Vec<(f64, usize)> = Vec::new();
    for (index, (_, points)) in curves.iter().enumerate() {
        let path: Vec<String> = points
            .iter()
            .filter(|(_, time)| time.is_finite())
            .map(|&(count, time)| format!("{:.1},{:.1}", x(count), y(time)))
            .collect();
        let color = COLORS[index % COLORS.len()];
        let dashes = if index < COLORS.len() { "" } else { r#" stroke-dasharray="5 3""# };
        let _ = writeln!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>"#,
            path.join(" ")
        );
        ends.extend(points.last().filter(|(_, time)| time.is_finite()).map(|&(_, time)| (y(time), index)));
    }
    ends.sort_by(|a, b| a.0.total_cmp(&b.0));
    for (end, index) in ends {
        let at = end.max(label_below);
        label_below = at + 15.0;
        line(&mut svg, (x(most), end), (x(most) + 14.0, at), COLORS[index % COLORS.len()]);
        text(&mut svg, x(most) + 18.0, at + 4.0, "start", curves[index].0);
    }
    svg.push_str("</svg>\n");
    Some(Picture { file: format!("w3-growth-{}.svg", disk.name()), title, svg })
}

fn begin(height: f64, title: &str) -> String {
    let mut svg = format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">
<rect width="{WIDTH}" height="{height}" fill="white"/>
"#
    );
    text(&mut svg, 16.0, 24.0, "start", title);
    svg
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, text: &str) {
    let _ = writeln!(svg, r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#24292f">{text}</text>"##);
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), color: &str) {
    let _ = writeln!(svg, r#"<line x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}" stroke="{color}"/>"#);
}

fn color_of(peer: &str) -> &'static str {
    match peer.split('-').next() {
        Some("zklock") => OURS,
        Some("raw") => FLOORS,
        _ => OTHERS,
    }
}
