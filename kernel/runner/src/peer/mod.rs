//! A peer of the machine, which is the other end of its connections: a client of its echo server,
//! through a forwarded TCP or UDP port of 127.0.0.1. A few of its connections violate the protocol
//! on purpose. `frames` is a peer on a network that connects only the machine and this process,
//! `matrix` is a client of the matrix server.

mod frames;
mod matrix;

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime};

/// Maximum wait for an answer of a booted machine.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Maximum wait for an answer while the machine may not have booted.
const RETRY_TIMEOUT: Duration = Duration::from_millis(300);
/// Number of concurrent connections.
const CONNECTIONS: usize = 4;
/// Number of bytes on each connection.
const BYTES: usize = 20_000;
/// Number of connections that are reset on purpose.
const RESETS: usize = 6;
/// Input of a client program of the host.
const TEXT: &[u8] = b"these words come back\n";
/// Number of datagrams that must be echoed.
const DATAGRAMS: u8 = 20;
/// Number of attempts for each datagram.
const ATTEMPTS: usize = 40;

pub(crate) use frames::check_frames;
pub(crate) use matrix::check_matrix;

pub(crate) fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    let address = listener.and_then(|listener| listener.local_addr());
    Ok(address.map_err(|error| error.to_string())?.port())
}

/// Returns the first of `count` consecutive ports without listeners. They are below the host's
/// ephemeral ports, any of which may be in use.
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

/// Repeats a request until the server answers, then uses several connections at once, and finally
/// stops the machine.
pub(crate) fn check_echo(port: u16) -> Result<(), String> {
    wait(port)?;
    // One connection is not read until all others have finished; other connections are reset.
    let unread = open_unread(port)?;
    for _ in 0..RESETS {
        // The connection is closed with unread bytes, so it is reset.
        drop(open_unread(port)?);
    }
    let clients: Vec<_> = (0..CONNECTIONS)
        .map(|n| {
            let bytes: Vec<u8> = (0..BYTES).map(|at| (at * (n + 1) % 251) as u8).collect();
            std::thread::spawn(move || echo(port, &bytes, TIMEOUT))
        })
        .collect();
    for client in clients {
        client
            .join()
            .map_err(|_| "a client panicked".to_owned())??;
    }
    check_unread(unread)?;
    for program in ["curl", "nc"] {
        check_echo_by(program, port)?;
    }
    end(port)
}

/// Sends bytes through a program of the host and checks the echo, if the program is installed.
/// `ping` cannot reach the machine, because QEMU's network only forwards ports.
fn check_echo_by(program: &str, port: u16) -> Result<(), String> {
    let mut command = Command::new(program);
    match program {
        "curl" => command.args(["-sS", "--no-buffer", &format!("telnet://127.0.0.1:{port}")]),
        _ => command.args(["127.0.0.1", &port.to_string()]),
    };
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(message(error)),
    };
    let pipes = child.stdin.take().zip(child.stdout.take());
    let (mut input, mut output) = pipes.ok_or("no pipes")?;
    // A separate thread reads, because the end of the input may end the program before the echo
    // arrives.
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut echoed = vec![0; TEXT.len()];
        let _ = sender.send(output.read_exact(&mut echoed).map(|()| echoed));
    });
    input.write_all(TEXT).map_err(message)?;
    input.flush().map_err(message)?;
    let echoed = receiver.recv_timeout(TIMEOUT);
    drop(input);
    let _ = child.kill();
    let _ = child.wait();
    match echoed {
        Ok(Ok(echoed)) if echoed == TEXT => Ok(()),
        other => Err(format!("{program}: {other:?} instead of the sent text")),
    }
}

pub(crate) fn check_datagram_echo(port: u16) -> Result<(), String> {
    wait(port)?;
    datagrams(port)?;
    end(port)
}

fn wait(port: u16) -> Result<(), String> {
    let limit = Instant::now() + TIMEOUT;
    // QEMU accepts connections before the machine listens, and then retries only after seconds.
    while echo(port, b"hello", RETRY_TIMEOUT).is_err() {
        if Instant::now() > limit {
            return Err("nothing answers".to_owned());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Tells the machine to stop, and waits until it closes the connection.
fn end(port: u16) -> Result<(), String> {
    let _ = echo(port, b"quit", TIMEOUT);
    Ok(())
}

fn message(error: std::io::Error) -> String {
    error.to_string()
}

/// Returns a connection on which as many bytes were sent as the server accepts, and none were read.
fn open_unread(port: u16) -> Result<(TcpStream, usize), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(message)?;
    stream
        .set_write_timeout(Some(RETRY_TIMEOUT))
        .map_err(message)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(message)?;
    let mut sent = 0;
    while sent < BYTES {
        match stream.write(&[7; 1000]) {
            Ok(count) => sent += count,
            Err(_) => break,
        }
    }
    // The echo is in flight, or waits for buffer space.
    let mut first = [0];
    stream.read_exact(&mut first).map_err(message)?;
    Ok((stream, sent - 1))
}

/// Reads the connection to its end and checks that every sent byte is echoed.
fn check_unread((mut stream, sent): (TcpStream, usize)) -> Result<(), String> {
    stream.shutdown(Shutdown::Write).map_err(message)?;
    let mut echoed = Vec::new();
    stream.read_to_end(&mut echoed).map_err(message)?;
    if echoed == vec![7; sent] {
        Ok(())
    } else {
        Err(format!(
            "{} of {sent} bytes came back on the connection that was read last",
            echoed.len()
        ))
    }
}

/// Checks that datagrams are echoed, although a few may be lost on the way.
fn datagrams(port: u16) -> Result<(), String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(message)?;
    socket
        .connect((Ipv4Addr::LOCALHOST, port))
        .map_err(message)?;
    socket
        .set_read_timeout(Some(RETRY_TIMEOUT))
        .map_err(message)?;
    for n in 0..DATAGRAMS {
        let sent = vec![n; 1 + usize::from(n) * 70];
        let is_echoed = (0..ATTEMPTS).any(|_| {
            let mut echoed = [0; 2000];
            let _ = socket.send(&sent);
            // An answer to an earlier attempt may arrive first.
            (0..4).any(|_| {
                socket
                    .recv(&mut echoed)
                    .is_ok_and(|count| echoed[..count] == sent)
            })
        });
        if !is_echoed {
            return Err(format!("datagram {n} is not echoed"));
        }
    }
    Ok(())
}

/// Sends bytes, shuts down the write half, and checks the echo.
fn echo(port: u16, bytes: &[u8], timeout: Duration) -> Result<(), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(message)?;
    stream.set_read_timeout(Some(timeout)).map_err(message)?;
    let mut writer = stream.try_clone().map_err(message)?;
    let sent = bytes.to_vec();
    let writer = std::thread::spawn(move || {
        writer.write_all(&sent)?;
        writer.shutdown(Shutdown::Write)
    });
    let mut echoed = Vec::new();
    stream.read_to_end(&mut echoed).map_err(message)?;
    // A failed write shows in the echo.
    let _ = writer.join();
    if echoed == bytes {
        Ok(())
    } else {
        Err(format!(
            "{} of {} bytes came back",
            echoed.len(),
            bytes.len()
        ))
    }
}
