//! Tests of sockets over the loopback, which needs no card. With the argument `serve` the program
//! is an echo server at port 7 for a peer outside of the machine, for connections and datagrams.

#![no_std]
#![no_main]

extern crate alloc;

mod leaks;
mod packets;
mod stream;
mod streams;
mod urgency;

use alloc::vec::Vec;

use os_user::coroutine::{self, current, reprio};
use os_user::net::{accept_async, datagram, datagrams, listen, receive_from_async, send_to_async};
use os_user::testing::{Outcome, message, run_all};
use os_user::{Error, sys, tests};

use leaks::{
    close_all, exit_with_calls_in_flight_leaves_nothing_behind, leak, leaked_sockets_are_closed,
    leave_calls_in_flight, sockets_are_limited_and_come_back, sockets_of_others_cannot_be_closed,
};
use packets::{
    datagrams_are_whole_or_lost, datagrams_have_their_source_address, wrong_datagrams_are_errors,
};
use streams::{
    both_forms_of_accept_and_connect, bytes_come_back_in_order,
    connection_without_a_listener_is_refused, connections_are_served_at_once,
    end_is_read_after_the_written_bytes, full_connection_makes_the_writer_wait,
    port_is_for_one_listener, waiting_for_a_connection_can_be_cancelled,
    writing_to_a_closed_connection_is_an_error, wrong_sockets_are_errors,
};
use urgency::{
    answer_of_a_listener_is_as_urgent_as_the_call, network_is_as_urgent_as_its_most_urgent_waiter,
};

os_user::coroutine_entry!(main);

tests! {
    both_forms_of_accept_and_connect,
    bytes_come_back_in_order,
    connections_are_served_at_once,
    connection_without_a_listener_is_refused,
    end_is_read_after_the_written_bytes,
    writing_to_a_closed_connection_is_an_error,
    full_connection_makes_the_writer_wait,
    wrong_sockets_are_errors,
    waiting_for_a_connection_can_be_cancelled,
    sockets_are_limited_and_come_back,
    datagrams_have_their_source_address,
    datagrams_are_whole_or_lost,
    wrong_datagrams_are_errors,
    port_is_for_one_listener,
    leaked_sockets_are_closed,
    exit_with_calls_in_flight_leaves_nothing_behind,
    sockets_of_others_cannot_be_closed,
    network_is_as_urgent_as_its_most_urgent_waiter,
    answer_of_a_listener_is_as_urgent_as_the_call,
}

async fn main() -> isize {
    let outcome = match os_user::argument() {
        b"serve" => serve().await,
        b"leak" => leak(),
        b"flight" => leave_calls_in_flight().await,
        b"closer" => close_all(),
        _ => {
            reprio(current(), 5);
            return run_all(TESTS).await;
        }
    };
    isize::from(outcome.is_err())
}

/// Serves connections until a client sends `quit`.
async fn serve() -> Outcome {
    let listener = listen(7, 4).map_err(message)?;
    let port = datagrams(7).map_err(message)?;
    coroutine::spawn(echo_datagrams(port), None).map_err(message)?;
    loop {
        let connection = accept_async(listener, current()).await;
        let connection = connection.map_err(message)?;
        let serve_connection = async move {
            if echo(connection).await == Ok(b"quit".into()) {
                os_user::exit(0);
            }
        };
        coroutine::spawn(serve_connection, None).map_err(message)?;
    }
}

/// Echoes received bytes until the end; returns the last received bytes.
async fn echo(connection: usize) -> Result<Vec<u8>, Error> {
    let mut last = Vec::new();
    loop {
        let (count, buffer) = os_user::read!(connection, Vec::from([0; 256]), current()).await;
        let count = count?;
        if count == 0 {
            sys::close(connection)?;
            return Ok(last);
        }
        last = Vec::from(&buffer[..count]);
        let (count, _) = os_user::write!(connection, last.clone(), current()).await;
        count?;
    }
}

/// Echoes datagrams until one contains `quit`.
async fn echo_datagrams(port: usize) -> Result<(), Error> {
    loop {
        let buffer = Vec::from([0; datagram::HEADER + datagram::MAX_LEN]);
        let (count, buffer) = receive_from_async(port, buffer, current()).await;
        if let Some((address, sender, bytes)) = datagram::parse(&buffer[..count?]) {
            if bytes == b"quit" {
                os_user::exit(0);
            }
            let (sent, _) = send_to_async(port, bytes.into(), (address, sender), current()).await;
            sent?;
        }
    }
}
