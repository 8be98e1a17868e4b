use std::time::{Duration, Instant};
use zklock::*;
fn main() {
    let servers = std::env::args().nth(1).unwrap();
    let client = Client::connect(&servers, &Config::new()).unwrap();
    println!("{:x} {:?}", client.session_id().unwrap(), client.state());
    let lock = client.mutex("/smoke/a").unwrap();
    lock.acquire(None).unwrap();
    println!("{:?} {:?} {:?} {:?}", lock.fencing_token(), lock.remaining(), lock.state(), lock.participants());
    lock.acquire(None).unwrap();
    lock.release().unwrap();
    std::thread::scope(|s| { s.spawn(|| { let t = Instant::now(); println!("{:?} {:?}", lock.acquire(Some(Duration::from_millis(300))), t.elapsed());
      println!("{:?}", lock.acquire(Some(Duration::ZERO))); println!("{:?}", lock.release()); }); });
    lock.release().unwrap();
    println!("{:?}", lock.release());
    let t = Instant::now();
    for _ in 0..5000 { lock.acquire(None).unwrap(); lock.release().unwrap(); }
    println!("{:?} per cycle", t.elapsed() / 5000);
    let t = Instant::now();
    client.close().unwrap();
    println!("close {:?} {:?}", t.elapsed(), lock.acquire(None));
}
