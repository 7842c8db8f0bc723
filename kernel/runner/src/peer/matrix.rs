//! Clients of the matrix server, at forwarded ports of 127.0.0.1. Every byte of a reply is compared
//! with the product that the host computes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use upshift_load::matrix::{HEADER, frame, square};

use super::{PATIENCE, SOON, text};

/// Orders of the matrices of a connection, one request after the other.
const ORDERS: [usize; 5] = [1, 8, 20, 2, 20];

/// Asks a server for the square of a number until it answers, then opens connections to all `count`
/// ports at once. Each `of_server` consecutive ports lead to one server.
pub(crate) fn speak(first: u16, count: u16, of_server: u16) -> Result<(), String> {
    let ports = first..first + count;
    for port in ports.clone().step_by(of_server.into()) {
        // QEMU accepts connections before there is a server.
        let limit = Instant::now() + PATIENCE;
        while let Err(error) = ask(port, &[1]) {
            if Instant::now() > limit {
                return Err(format!("port {port}: {error}"));
            }
            std::thread::sleep(SOON);
        }
    }
    let all: Vec<_> = ports
        .map(|port| std::thread::spawn(move || ask(port, &ORDERS)))
        .collect();
    for one in all {
        one.join().map_err(|_| "a client panicked".to_owned())??;
    }
    Ok(())
}

/// Requests the squares of matrices of these orders on one connection.
fn ask(port: u16, orders: &[usize]) -> Result<(), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(text)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(text)?;
    for (at, &n) in orders.iter().enumerate() {
        let question = frame(n, u64::from(port) + at as u64);
        let mut right = Vec::new();
        square(&question[HEADER..], n, &mut right);
        let mut reply = vec![0; right.len()];
        stream.write_all(&question).map_err(text)?;
        stream.read_exact(&mut reply).map_err(text)?;
        if reply != right {
            return Err(format!("port {port}: a wrong square of order {n}"));
        }
    }
    Ok(())
}
