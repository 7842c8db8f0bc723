//! An urgent client: one request after the other, with rests, on one connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;

const REQUEST: &[u8] = b"GET /orders/1 HTTP/1.1\r\nHost: here\r\n\r\n";
const REST: Duration = Duration::from_millis(2);

/// Microseconds.
pub struct Figures {
    pub p50: u64,
    pub p99: u64,
}

pub fn measure(address: SocketAddr, span: Duration) -> Result<Figures> {
    thread::spawn(move || client(address, span))
        .join()
        .map_err(|_| "the client panicked")?
}

fn client(address: SocketAddr, span: Duration) -> Result<Figures> {
    take_short_slices();
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut times = Vec::new();
    let mut answer = [0; 4096];
    let began = Instant::now();
    while began.elapsed() < span {
        let asked = Instant::now();
        stream.write_all(REQUEST)?;
        let count = stream.read(&mut answer)?;
        times.push(asked.elapsed().as_micros() as u64);
        // Answers are shorter than a segment.
        if !answer[..count].starts_with(b"HTTP/1.1 200") {
            let text = String::from_utf8_lossy(&answer[..count]).into_owned();
            return Err(format!("the urgent client got {text:?}").into());
        }
        thread::sleep(REST);
    }
    times.sort_unstable();
    Ok(Figures {
        p50: times[times.len() / 2],
        p99: times[times.len() * 99 / 100],
    })
}

pub fn median(figures: impl IntoIterator<Item = u64>) -> u64 {
    let mut figures: Vec<u64> = figures.into_iter().collect();
    figures.sort_unstable();
    figures[figures.len() / 2]
}

/// Has the kernel run this thread as soon as its answer is there, beside threads that compute: what is measured is the service, not the
/// client. Needs no rights.
fn take_short_slices() {
    #[repr(C)]
    struct Attributes {
        size: u32,
        policy: u32,
        flags: u64,
        nice: i32,
        priority: u32,
        runtime: u64,
        deadline: u64,
        period: u64,
    }
    let attributes = Attributes {
        size: size_of::<Attributes>() as u32,
        policy: libc::SCHED_OTHER as u32,
        flags: 0,
        nice: 0,
        priority: 0,
        runtime: 100_000,
        deadline: 0,
        period: 0,
    };
    // SAFETY: a pointer to a struct of the size that it says. Kernels that know no slices refuse, or ignore it.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}
