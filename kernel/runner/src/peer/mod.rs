//! A peer of the machine: it speaks to the echo server there, through a forwarded port of
//! 127.0.0.1, of TCP or of UDP. Some of it is not polite. `frames` is on the machine's own network,
//! `matrix` asks the matrix server.

mod frames;
mod matrix;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// How long the machine may take to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// And while it may not be up yet.
const SOON: Duration = Duration::from_millis(300);
/// Connections at a time, and bytes of each.
const CONNECTIONS: usize = 4;
const BYTES: usize = 20_000;
/// Connections that end in the middle.
const RUDE: usize = 6;
/// What a program of the host sends.
const WORDS: &[u8] = b"these words come back\n";
/// Datagrams that come back, and how often one is sent before it is given up.
const DATAGRAMS: u8 = 20;
const TRIES: usize = 40;

pub(crate) use frames::speak as speak_frames;
pub(crate) use matrix::speak as ask_matrix;

/// A port that nothing listens at, for now.
pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| error.to_string())?.port())
}

/// The first of so many ports in a row that nothing listens at, for now: below those that the host
/// gives its clients, of which any may be in use.
pub(crate) fn free_ports(count: u16) -> Result<u16, String> {
    let is_free = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    for _ in 0..100 {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let first = 10_000 + since.map_or(0, |since| since.subsec_micros() % 20_000) as u16;
        if (first..first + count).all(is_free) {
            return Ok(first);
        }
    }
    Err(format!("no {count} ports in a row are free"))
}

/// Speaks to it until it serves, then on several connections at once; at last tells it to
/// end.
pub(crate) fn speak(port: u16) -> Result<(), String> {
    wait(port)?;
    // One that reads nothing, until all others are done, and some that vanish.
    let slow = unread(port)?;
    for _ in 0..RUDE {
        // Closed with bytes that were not read: it is reset.
        drop(unread(port)?);
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
    read_at_last(slow)?;
    for program in ["curl", "nc"] {
        say_by(program, port)?;
    }
    end(port)
}

/// Bytes go there and back by a program of the host, if it has that. (`ping` has no way there: QEMU's network forwards ports only.)
fn say_by(program: &str, port: u16) -> Result<(), String> {
    let mut command = Command::new(program);
    match program {
        "curl" => command.args(["-sS", "--no-buffer", &format!("telnet://127.0.0.1:{port}")]),
        _ => command.args(["127.0.0.1", &port.to_string()]),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(text(error)),
    };
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (mut to, mut from) = pipes.ok_or("no pipes")?;
    // Its own thread: that its input ends may end the program before the echo is there.
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut back = vec![0; WORDS.len()];
        let _ = tell.send(from.read_exact(&mut back).map(|()| back));
    });
    to.write_all(WORDS).map_err(text)?;
    to.flush().map_err(text)?;
    let back = told.recv_timeout(PATIENCE);
    drop(to);
    let _ = child.kill();
    let _ = child.wait();
    match back {
        Ok(Ok(back)) if back == WORDS => Ok(()),
        other => Err(format!("{program}: {other:?} instead of what was sent")),
    }
}

/// The same with datagrams.
pub(crate) fn speak_datagrams(port: u16) -> Result<(), String> {
    wait(port)?;
    datagrams(port)?;
    end(port)
}

/// Speaks to it until it serves.
fn wait(port: u16) -> Result<(), String> {
    let limit = Instant::now() + PATIENCE;
    // QEMU takes connections before anything listens behind it, and tries again there after
    // seconds only.
    while say(port, b"hello", SOON).is_err() {
        if Instant::now() > limit {
            return Err("nothing answers".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Tells it to end, which it does before it closes.
fn end(port: u16) -> Result<(), String> {
    let _ = say(port, b"quit", PATIENCE);
    Ok(())
}

fn text(error: std::io::Error) -> String {
    error.to_string()
}

/// A connection over which as much is sent as is taken, and nothing read.
fn unread(port: u16) -> Result<(TcpStream, usize), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(text)?;
    stream.set_write_timeout(Some(SOON)).map_err(text)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
    let mut sent = 0;
    while sent < BYTES {
        match stream.write(&[7; 1000]) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    // Its echo is under way, or waits for room.
    let mut first = [0];
    stream.read_exact(&mut first).map_err(text)?;
    Ok((stream, sent - 1))
}

/// All that was sent comes back, however late it is read.
fn read_at_last((mut stream, sent): (TcpStream, usize)) -> Result<(), String> {
    stream.shutdown(Shutdown::Write).map_err(text)?;
    let mut back = Vec::new();
    stream.read_to_end(&mut back).map_err(text)?;
    match back == vec![7; sent] {
        true => Ok(()),
        false => Err(format!("{} of {sent} slow bytes came back", back.len())),
    }
}

/// Datagrams come back, though some may be lost on the way.
fn datagrams(port: u16) -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(text)?;
    socket.connect((Ipv4Addr::LOCALHOST, port)).map_err(text)?;
    socket.set_read_timeout(Some(SOON)).map_err(text)?;
    for n in 0..DATAGRAMS {
        let sent = vec![n; 1 + usize::from(n) * 70];
        let comes_back = (0..TRIES).any(|_| {
            let mut back = [0; 2000];
            let _ = socket.send(&sent);
            // An answer to an earlier try may come first.
            (0..4).any(|_| {
                socket
                    .recv(&mut back)
                    .is_ok_and(|count| back[..count] == sent)
            })
        });
        if !comes_back {
            return Err(format!("datagram {n} does not come back"));
        }
    }
    Ok(())
}

/// Sends these bytes, ends writing, and checks that they come back.
fn say(port: u16, bytes: &[u8], patience: Duration) -> Result<(), String> {
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
