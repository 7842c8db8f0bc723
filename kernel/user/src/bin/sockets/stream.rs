//! A stream of test bytes that a server echoes, and its checker.

use alloc::string::String;
use alloc::vec::Vec;

use os_user::coroutine::{self, current};
use os_user::net::{SELF, accept_async, connect_async, listen};
use os_user::testing::{Outcome, message};
use os_user::{ensure, sys};

use crate::echo;

/// Returns the byte of the test stream at `offset`.
pub(crate) fn stream_byte(offset: usize) -> u8 {
    (offset % 251) as u8
}

/// Reads to the end, and checks that the bytes are those of the test stream; returns their number.
pub(crate) async fn check(connection: usize) -> Result<usize, String> {
    let mut done = 0;
    loop {
        let (count, buffer) = os_user::read!(connection, Vec::from([0; 200]), current()).await;
        let count = count.map_err(message)?;
        if count == 0 {
            return Ok(done);
        }
        for byte_read in &buffer[..count] {
            ensure!(
                *byte_read == stream_byte(done),
                "byte {done} is {byte_read}"
            );
            done += 1;
        }
    }
}

/// Sends the test stream to a server, shuts the sending side down, and checks the echo.
pub(crate) async fn send_and_check(port: u16, total: usize) -> Outcome {
    let socket = sys::socket().map_err(message)? as usize;
    let answer = connect_async(socket, SELF, port, current()).await;
    answer.map_err(message)?;
    let writer = async move {
        let bytes: Vec<u8> = (0..total).map(stream_byte).collect();
        let (count, _) = os_user::write!(socket, bytes, current()).await;
        sys::shutdown(socket)?;
        count
    };
    let writer = coroutine::spawn(writer, None).map_err(message)?;
    let seen = check(socket).await?;
    let count = writer.await;
    ensure!(count == Some(Ok(total)), "{count:?} written");
    ensure!(seen == total, "{seen} bytes came back instead of {total}");
    sys::close(socket).map_err(message)?;
    Ok(())
}

/// Starts a server that echoes `count` connections and then ends.
pub(crate) fn server(port: u16, count: usize) -> Result<coroutine::JoinHandle<Outcome>, String> {
    // Without space in the backlog a connection is refused.
    let listener = listen(port, count).map_err(message)?;
    let serve = async move {
        let mut handlers = Vec::new();
        for _ in 0..count {
            let connection = accept_async(listener, current()).await;
            let connection = connection.map_err(message)?;
            handlers.push(coroutine::spawn(echo(connection), None).map_err(message)?);
        }
        for handler in handlers {
            ensure!(
                matches!(handler.await, Some(Ok(_))),
                "a connection has failed"
            );
        }
        sys::close(listener).map_err(message)?;
        Ok(())
    };
    coroutine::spawn(serve, None).map_err(message)
}

/// Returns the outcome of a joined coroutine; a cancelled coroutine has failed.
pub(crate) fn flatten_outcome(outcome: Option<Outcome>) -> Outcome {
    outcome.unwrap_or_else(|| Err("the coroutine was cancelled".into()))
}
