//! Clients of the matrix server, at forwarded ports of 127.0.0.1. The clients compare every byte of
//! a reply with the product that the host computes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::Instant;

use upshift_load::matrix::{HEADER, frame, square};

use super::{RETRY_TIMEOUT, TIMEOUT, message};

/// Orders of the matrices of a connection, which are requested one after the other.
const ORDERS: [usize; 5] = [1, 8, 20, 2, 20];

/// Requests the square of a 1 × 1 matrix until each server answers, then opens connections to all
/// `count` ports at once. Each group of `ports_per_server` consecutive ports leads to one server.
pub(crate) fn check_matrix(first: u16, count: u16, ports_per_server: u16) -> Result<(), String> {
    let ports = first..first + count;
    for port in ports.clone().step_by(ports_per_server.into()) {
        // QEMU accepts connections before the server listens.
        let limit = Instant::now() + TIMEOUT;
        while let Err(error) = check_squares(port, &[1]) {
            if Instant::now() > limit {
                return Err(format!("port {port}: {error}"));
            }
            std::thread::sleep(RETRY_TIMEOUT);
        }
    }
    let clients: Vec<_> = ports
        .map(|port| std::thread::spawn(move || check_squares(port, &ORDERS)))
        .collect();
    for client in clients {
        client
            .join()
            .map_err(|_| "a client panicked".to_owned())??;
    }
    Ok(())
}

/// Requests the squares of matrices of these orders on one connection.
fn check_squares(port: u16, orders: &[usize]) -> Result<(), String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).map_err(message)?;
    stream.set_read_timeout(Some(TIMEOUT)).map_err(message)?;
    for (at, &n) in orders.iter().enumerate() {
        let request = frame(n, u64::from(port) + at as u64);
        let mut expected = Vec::new();
        square(&request[HEADER..], n, &mut expected);
        let mut reply = vec![0; expected.len()];
        stream.write_all(&request).map_err(message)?;
        stream.read_exact(&mut reply).map_err(message)?;
        if reply != expected {
            return Err(format!("port {port}: a wrong square of order {n}"));
        }
    }
    Ok(())
}
