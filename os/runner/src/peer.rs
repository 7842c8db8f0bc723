//! A peer of the machine: it speaks to the echo server there, through a forwarded port of
//! 127.0.0.1.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// How long the machine may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// And while it may not be up yet.
const SOON: Duration = Duration::from_millis(300);
/// Connections at a time, and bytes of each.
const CONNECTIONS: usize = 4;
const BYTES: usize = 20_000;

/// A port that nothing listens at, for now.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| error.to_string())?.port())
}

/// Speaks to it until it serves, then on several connections at once; at last tells it to
/// end.
pub(crate) fn speak(port: u16) -> Result<(), String> {
    let limit = Instant::now() + PATIENCE;
    // QEMU takes connections before anything listens behind it, and tries again there after
    // seconds only.
    while say(port, b"hello", SOON).is_err() {
        if Instant::now() > limit {
            return Err("nothing answers".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let all: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let bytes: Vec<u8> = (0..BYTES).map(|at| (at * (n + 1) % 251) as u8).collect();
            std::thread::spawn(move || say(port, &bytes, PATIENCE))
        })
        .collect();
    for one in all {
        one.join().map_err(|_| "it panicked".to_owned())??;
    }
    // It ends before it closes.
    let _ = say(port, b"quit", PATIENCE);
    Ok(())
}

/// Sends these bytes, ends writing, and checks that they come back.
fn say(port: u16, bytes: &[u8], patience: Duration) -> Result<(), String> {
    let text = |error: std::io::Error| error.to_string();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(text)?;
    stream.set_read_timeout(Some(patience)).map_err(text)?;
    let mut writer = stream.try_clone().map_err(text)?;
    let sent = bytes.to_vec();
    let writer = std::thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut back = Vec::new();
    stream.read_to_end(&mut back).map_err(text)?;
    // A write that fails shows in what comes back.
    let _ = writer.join();
    match back == bytes {
        true => Ok(()),
        false => Err(format!("{} of {} bytes came back", back.len(), bytes.len())),
    }
}
