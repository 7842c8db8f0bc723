//! Tests that sockets are limited, and free again after they have been closed, leaked, or had calls
//! in flight.

use alloc::string::String;
use alloc::vec::Vec;

use os_user::coroutine::current;
use os_user::net::{
    SELF, accept, accept_async, connect, connect_async, datagrams, listen, receive_from_async,
    send_to,
};
use os_user::testing::{Outcome, message};
use os_user::{Bounds, Error, ensure, read, sleep, spawn_within, sys, write};

pub(crate) async fn sockets_are_limited_and_come_back() -> Outcome {
    for round in 0..2 {
        let mut listeners = Vec::new();
        let error = loop {
            match listen(2000 + listeners.len() as u16, 16) {
                Ok(listener) => listeners.push(listener),
                Err(error) => break error,
            }
        };
        let count = listeners.len();
        for listener in listeners {
            sys::close(listener).map_err(message)?;
        }
        ensure!(
            error == Error::TooMany && (1..=64).contains(&count),
            "round {round}: {count} listeners, then {error:?}"
        );
    }
    Ok(())
}

/// Runs this program with the argument `task` to its end, in the same resource share, so that
/// leaked resources are charged to this process.
pub(crate) async fn run_task(task: &[u8], files: &[usize]) -> Outcome {
    let bounds = Bounds {
        level: 20,
        ceiling: 20,
        halvings: 0,
    };
    let child = spawn_within("sockets", task, files, bounds).map_err(message)?;
    let status = os_user::asynchronous::wait(child, current()).await;
    ensure!(status == Ok(0), "status {status:?}");
    Ok(())
}

/// Opens as many datagram sockets as possible, closes them, and returns their number.
pub(crate) fn count_sockets() -> Result<usize, String> {
    let mut sockets = Vec::new();
    while let Ok(socket) = datagrams(0) {
        sockets.push(socket);
    }
    let count = sockets.len();
    for socket in sockets {
        sys::close(socket).map_err(message)?;
    }
    Ok(count)
}

/// Waits until as many sockets are available as before, because closed connections linger for a
/// moment.
pub(crate) async fn sockets_come_back(before: usize) -> Outcome {
    for _ in 0..70 {
        if count_sockets()? == before {
            return Ok(());
        }
        sleep(100_000).await;
    }
    let now = count_sockets()?;
    Err(alloc::format!("{now} sockets instead of {before}"))
}

/// Opens sockets of every kind and in every state, and closes none.
pub(crate) fn leak() -> Outcome {
    for _ in 0..4 {
        // The parent listens at this port.
        let connection = connect(SELF, 1020).map_err(message)?;
        write(connection, b"left").map_err(message)?;
    }
    let listener = listen(1021, 4).map_err(message)?;
    for n in 0..3 {
        let connection = connect(SELF, 1021).map_err(message)?;
        if n > 0 {
            accept(listener).map_err(message)?;
        }
        if n > 1 {
            sys::shutdown(connection).map_err(message)?;
        }
    }
    for _ in 0..10 {
        sys::socket().map_err(message)?;
        let port = datagrams(0).map_err(message)?;
        send_to(port, b"nobody", (SELF, 1022)).map_err(message)?;
    }
    Ok(())
}

/// A connection that a program has left open ends as if the program had closed it. The peer reads
/// the written bytes, then the end; ports and slots are free again.
pub(crate) async fn leaked_sockets_are_closed() -> Outcome {
    let before = count_sockets()?;
    let listener = listen(1020, 8).map_err(message)?;
    run_task(b"leak", &[]).await?;
    for n in 0..4 {
        let connection = accept(listener).map_err(message)?;
        let mut bytes = [0; 16];
        let count = read!(connection, &mut bytes).map_err(message)?;
        ensure!(&bytes[..count] == b"left", "connection {n}: {count} bytes");
        let end = read!(connection, &mut bytes);
        ensure!(end == Ok(0), "connection {n}: {end:?}");
        sys::close(connection).map_err(message)?;
    }
    sys::close(listener).map_err(message)?;
    let listener = listen(1021, 4).map_err(message)?;
    sys::close(listener).map_err(message)?;
    sockets_come_back(before).await
}

/// Leaves calls of every kind pending, so that the process exits with them in flight.
pub(crate) async fn leave_calls_in_flight() -> Outcome {
    let listener = listen(1023, 2).map_err(message)?;
    let client = connect(SELF, 1023).map_err(message)?;
    let server = accept(listener).map_err(message)?;
    let port = datagrams(0).map_err(message)?;
    let unconnected = sys::socket().map_err(message)? as usize;
    let calls = (
        accept_async(listener, current()),
        // This address is not in use.
        connect_async(unconnected, [10, 9, 8, 7], 1, current()),
        receive_from_async(port, Vec::from([0; 64]), current()),
        os_user::read!(server, Vec::from([0; 64]), current()),
        // The bytes exceed the buffers of both sides.
        os_user::write!(client, Vec::from([1; 20_000]), current()),
    );
    sleep(2_000).await;
    core::mem::forget(calls);
    Ok(())
}

pub(crate) async fn exit_with_calls_in_flight_leaves_nothing_behind() -> Outcome {
    let before = count_sockets()?;
    for _ in 0..3 {
        run_task(b"flight", &[]).await?;
    }
    sockets_come_back(before).await
}

/// Tries to close descriptors 0 to 99, and checks that only 0 and 1, which the process was given,
/// were open.
pub(crate) fn close_all() -> Outcome {
    write(0, b"mine").map_err(message)?;
    for file in 0..100 {
        let is_open = file < 2;
        let closed = sys::close(file);
        ensure!(closed.is_ok() == is_open, "{file}: {closed:?}");
    }
    for file in [0, 5, 99] {
        ensure!(
            sys::shutdown(file) == Err(Error::BadFile),
            "descriptor {file} was shut down"
        );
    }
    Ok(())
}

/// A descriptor belongs to its process. After a child has closed its copies, the descriptors of the
/// parent and the peer still work.
pub(crate) async fn sockets_of_others_cannot_be_closed() -> Outcome {
    let listener = listen(1024, 1).map_err(message)?;
    let client = connect(SELF, 1024).map_err(message)?;
    let server = accept(listener).map_err(message)?;
    run_task(b"closer", &[client, listener]).await?;
    write(client, b", and mine").map_err(message)?;
    let mut bytes = [0; 32];
    let mut count = 0;
    while count < 14 {
        count += read!(server, &mut bytes[count..]).map_err(message)?;
    }
    ensure!(&bytes[..count] == b"mine, and mine", "{count} bytes");
    for file in [client, server, listener] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}
