//! Converts a client's metrics to objects of the classes in `zklock/_metrics.py`, and converts labels for Prometheus. The core
//! defines the names and values of all metrics.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping, PyString, PyTuple};
use zklock::{Histogram, Labels, Metrics, Value};

use crate::display::type_name;
use crate::errors::{OrRaise, wrong_type};
use crate::imports::imports;
use crate::python_call::CallPython;
use crate::states::client_state;
use crate::text;

/// Makes a `Metrics` object. Its fields have the names from the core's table of metrics.
pub(crate) fn object<'py>(py: Python<'py>, metrics: &Metrics) -> PyResult<Bound<'py, PyAny>> {
    let fields = PyDict::new(py);
    for metric in Metrics::ALL {
        match metric.value(metrics) {
            Value::Number(number) => fields.set_item(metric.field, number)?,
            Value::Span(span) => fields.set_item(metric.field, seconds(span))?,
            Value::Histogram(value) => fields.set_item(metric.field, histogram(py, value)?)?,
            Value::State(state) => fields.set_item(metric.field, client_state(py, state)?)?,
            // The class `Metrics` has no field for this metric.
            _ => {}
        }
    }
    imports(py)?.metrics.bind(py).call_python((fields,))
}

fn histogram<'py>(py: Python<'py>, histogram: &Histogram) -> PyResult<Bound<'py, PyAny>> {
    let bound = |bound: Option<Duration>| bound.map_or(f64::INFINITY, seconds);
    let buckets =
        PyTuple::new(py, histogram.buckets().map(|(limit, count)| (bound(limit), count)).collect::<Vec<_>>())?;
    imports(py)?.histogram.bind(py).call_python((histogram.count(), seconds(histogram.sum()), buckets))
}

/// Returns the float nearest to a duration in seconds. The core converts durations for Prometheus in the same way.
fn seconds(duration: Duration) -> f64 {
    duration.as_nanos() as f64 / 1e9
}

/// Converts the labels that a program passes.
pub(crate) fn labels(given: Option<&Bound<'_, PyAny>>) -> PyResult<Labels> {
    let mut labels = Labels::new();
    let Some(given) = given else { return Ok(labels) };
    let wrong = |kind: Bound<'_, PyAny>, what: &str| -> PyResult<PyErr> {
        let kind = type_name(&kind);
        Ok(wrong_type(format!("labels: expected {what}, not {kind}")))
    };
    let Ok(mapping) = given.cast::<PyMapping>() else {
        return Err(wrong(given.clone(), "a mapping of names to values, or None")?);
    };
    for item in mapping.items()? {
        let (name, value) = item.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>()?;
        let (name, value) = match (name.cast_into::<PyString>(), value.cast_into::<PyString>()) {
            (Ok(name), Ok(value)) => (name, value),
            (Err(error), _) | (_, Err(error)) => {
                return Err(wrong(error.into_inner(), "names and values that are str")?);
            }
        };
        labels.add(&text::content("labels", &name)?, &text::content("labels", &value)?).or_raise(given.py())?;
    }
    Ok(labels)
}
