//! Tests of connections: order of bytes, ends, errors, cancelling.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;

use os_user::calls;
use os_user::coroutine::{self, current};
use os_user::net::{SELF, accept, accept_async, connect, listen};
use os_user::testing::{Outcome, message};
use os_user::{Error, ensure, read, sleep, sys, thread, write};

use crate::stream::{check, flatten_outcome, send_and_check, server, stream_byte};

pub(crate) async fn bytes_come_back_in_order() -> Outcome {
    let server = server(1000, 1)?;
    send_and_check(1000, 20_000).await?;
    flatten_outcome(server.await)
}

pub(crate) async fn connections_are_served_at_once() -> Outcome {
    let server = server(1001, 6)?;
    let mut clients = Vec::new();
    for n in 0..6 {
        let client = send_and_check(1001, 1_000 + n * 700);
        clients.push(coroutine::spawn(client, None).map_err(message)?);
    }
    for client in clients {
        flatten_outcome(client.await)?;
    }
    flatten_outcome(server.await)
}

pub(crate) async fn connection_without_a_listener_is_refused() -> Outcome {
    let answer = connect(SELF, 1002);
    ensure!(answer == Err(Error::Refused), "{answer:?}");
    Ok(())
}

/// Tests the synchronous calls, from two threads.
pub(crate) async fn end_is_read_after_the_written_bytes() -> Outcome {
    let listener = listen(1003, 1).map_err(message)?;
    let writer = thread::spawn(move || {
        let connection = accept(listener)?;
        write(connection, b"the last words")?;
        sys::close(connection)
    });
    let writer = writer.map_err(message)?;
    let connection = connect(SELF, 1003).map_err(message)?;
    let (mut all, mut part) = (Vec::new(), [0; 4]);
    loop {
        match read(connection, &mut part).map_err(message)? {
            0 => break,
            count => all.extend_from_slice(&part[..count]),
        }
    }
    ensure!(all == b"the last words", "{all:?}");
    writer.join().map_err(message)?.map_err(message)?;
    sys::close(connection).map_err(message)?;
    sys::close(listener).map_err(message)?;
    Ok(())
}

pub(crate) async fn writing_to_a_closed_connection_is_an_error() -> Outcome {
    let listener = listen(1004, 1).map_err(message)?;
    let connection = connect(SELF, 1004).map_err(message)?;
    let accepted = accept(listener).map_err(message)?;
    sys::shutdown(connection).map_err(message)?;
    let answer = write(connection, b"more");
    ensure!(answer == Err(Error::BrokenPipe), "{answer:?}");
    let answer = read(accepted, &mut [0]);
    ensure!(answer == Ok(0), "{answer:?}");
    for file in [connection, accepted, listener] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

/// Checks that a write waits while nothing reads and both buffers are full, and that all bytes
/// arrive once there is a reader.
pub(crate) async fn full_connection_makes_the_writer_wait() -> Outcome {
    const TOTAL: usize = 30_000;
    let listener = listen(1005, 1).map_err(message)?;
    let connection = connect(SELF, 1005).map_err(message)?;
    let accepted = accept(listener).map_err(message)?;
    let has_written = Arc::new(AtomicBool::new(false));
    let writer = {
        let has_written = has_written.clone();
        async move {
            let all: Vec<u8> = (0..TOTAL).map(stream_byte).collect();
            let (count, _) = os_user::write!(connection, all, current()).await;
            has_written.store(true, SeqCst);
            let _ = sys::close(connection);
            count
        }
    };
    let writer = coroutine::spawn(writer, None).map_err(message)?;
    sleep(20_000).await;
    ensure!(!has_written.load(SeqCst), "the write did not wait");
    let seen = check(accepted).await?;
    ensure!(seen == TOTAL, "{seen} bytes");
    let count = writer.await;
    ensure!(count == Some(Ok(TOTAL)), "{count:?}");
    sys::close(accepted).map_err(message)?;
    sys::close(listener).map_err(message)?;
    Ok(())
}

pub(crate) async fn wrong_sockets_are_errors() -> Outcome {
    let socket = sys::socket().map_err(message)? as usize;
    let pipe = os_user::pipe().map_err(message)?;
    let answers = [
        (sys::listen(socket, 4), Error::BadArgument),
        (sys::bind(socket, 70_000), Error::BadArgument),
        (sys::accept(socket), Error::BadFile),
        (sys::accept(pipe.reader), Error::BadFile),
        (sys::shutdown(socket), Error::BadFile),
        (sys::bind(pipe.reader, 9), Error::BadFile),
        (sys::connect(socket, 0, 0), Error::BadArgument),
        (sys::connect(usize::MAX, 0, 9), Error::BadFile),
        (sys::connect(socket, usize::MAX, 9), Error::BadArgument),
        (read(socket, &mut [0]).map(|_| 0), Error::BadFile),
    ];
    for (n, (answer, expected)) in answers.into_iter().enumerate() {
        ensure!(answer == Err(expected), "call {n}: {answer:?}");
    }
    for file in [socket, pipe.reader, pipe.writer] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

pub(crate) async fn waiting_for_a_connection_can_be_cancelled() -> Outcome {
    let listener = listen(1006, 2).map_err(message)?;
    let call = accept_async(listener, current());
    sleep(1_000).await;
    call.cancel();
    let answer = call.await;
    ensure!(answer == Err(Error::Cancelled), "{answer:?}");
    drop(accept_async(listener, current()));
    sys::close(listener).map_err(message)?;
    Ok(())
}

pub(crate) async fn both_forms_of_accept_and_connect() -> Outcome {
    let listener = listen(3005, 2).map_err(message)?;
    for awaits_accept in [false, true] {
        let socket = sys::socket().map_err(message)? as usize;
        let connected = if awaits_accept {
            calls::connect!(socket, SELF, 3005)
        } else {
            calls::connect!(socket, SELF, 3005, current()).await
        };
        connected.map_err(message)?;
        let accepted = if awaits_accept {
            accept!(listener, current()).await
        } else {
            accept!(listener)
        };
        let accepted = accepted.map_err(message)?;
        ensure!(
            write!(socket, b"through") == Ok(7),
            "the socket is not connected"
        );
        let mut bytes = [0; 8];
        let count = read!(accepted, &mut bytes);
        ensure!(count == Ok(7) && bytes.starts_with(b"through"), "{count:?}");
        for file in [socket, accepted] {
            sys::close(file).map_err(message)?;
        }
    }
    sys::close(listener).map_err(message)?;
    let unconnected = [(); 2].map(|()| sys::socket().map_or(0, |socket| socket as usize));
    let blocking = calls::connect!(unconnected[0], SELF, 3005);
    let awaited = calls::connect!(unconnected[1], SELF, 3005, current()).await;
    ensure!(
        [blocking, awaited] == [Err(Error::Refused); 2],
        "{blocking:?}, {awaited:?}"
    );
    let blocking = accept!(unconnected[0]);
    let awaited = accept!(unconnected[0], current()).await;
    ensure!(
        [blocking, awaited] == [Err(Error::BadFile); 2],
        "{blocking:?}, {awaited:?}"
    );
    for socket in unconnected {
        sys::close(socket).map_err(message)?;
    }
    Ok(())
}

pub(crate) async fn port_is_for_one_listener() -> Outcome {
    let listener = listen(3004, 2).map_err(message)?;
    let answer = listen(3004, 1);
    ensure!(answer == Err(Error::InUse), "{answer:?}");
    sys::close(listener).map_err(message)?;
    let reopened = listen(3004, 1).map_err(message)?;
    sys::close(reopened).map_err(message)?;
    Ok(())
}
