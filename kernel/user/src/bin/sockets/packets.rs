//! Tests of datagrams: they arrive whole or not at all, with the address of their source.

use alloc::vec::Vec;

use os_user::coroutine::current;
use os_user::net::{
    SELF, datagram, datagrams, receive_from, receive_from_async, send_to, send_to_async,
};
use os_user::testing::{Outcome, message};
use os_user::{Error, ensure, read, sleep, sys, write};

pub(crate) async fn datagrams_have_their_source_address() -> Outcome {
    let (receiver, sender) = (datagrams(3000), datagrams(0));
    let (receiver, sender) = (receiver.map_err(message)?, sender.map_err(message)?);
    let mut buffer = [0; 40];
    // No datagram has been sent, so the call waits.
    let waiting = receive_from_async(receiver, Vec::from([0; 40]), current());
    let sent = send_to(sender, b"there", (SELF, 3000)).map_err(message)?;
    ensure!(sent == 5, "{sent} sent");
    let (count, bytes) = waiting.await;
    let count = count.map_err(message)?;
    let parsed = datagram::parse(&bytes[..count]);
    let Some((SELF, port, b"there")) = parsed else {
        return Err(alloc::format!("{parsed:?}"));
    };
    send_to(receiver, b"", (SELF, port)).map_err(message)?;
    let count = receive_from(sender, &mut buffer).map_err(message)?;
    let parsed = datagram::parse(&buffer[..count]);
    ensure!(parsed == Some((SELF, 3000, &b""[..])), "{parsed:?}");
    // A datagram that does not fit into the buffer is truncated.
    send_to(receiver, b"longer", (SELF, port)).map_err(message)?;
    let count = receive_from(sender, &mut buffer[..datagram::HEADER + 3]).map_err(message)?;
    let parsed = datagram::parse(&buffer[..count]);
    ensure!(parsed == Some((SELF, 3000, &b"lon"[..])), "{parsed:?}");
    // The synchronous and the asynchronous form of both calls.
    let bytes = Vec::from(b"awaited");
    let (sent, bytes) = send_to!(sender, bytes, (SELF, 3000), current()).await;
    ensure!(sent == Ok(7) && bytes == b"awaited", "{sent:?}");
    let count = receive_from!(receiver, &mut buffer).map_err(message)?;
    let parsed = datagram::parse(&buffer[..count]);
    ensure!(parsed == Some((SELF, port, &b"awaited"[..])), "{parsed:?}");
    ensure!(
        send_to!(receiver, b"blocking", (SELF, port)) == Ok(8),
        "the blocking send failed"
    );
    let (count, bytes) = receive_from!(sender, Vec::from([0; 40]), current()).await;
    let parsed = datagram::parse(&bytes[..count.map_err(message)?]);
    ensure!(parsed == Some((SELF, 3000, &b"blocking"[..])), "{parsed:?}");
    for file in [receiver, sender] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

/// If a sender exceeds the buffer of the receiver, a part of the datagrams arrive, in order and
/// whole.
pub(crate) async fn datagrams_are_whole_or_lost() -> Outcome {
    let (receiver, sender) = (datagrams(3001), datagrams(0));
    let (receiver, sender) = (receiver.map_err(message)?, sender.map_err(message)?);
    for n in 0..100u8 {
        let bytes = Vec::from([n; 500]);
        let (sent, _) = send_to_async(sender, bytes, (SELF, 3001), current()).await;
        ensure!(sent == Ok(500), "{n}: {sent:?}");
    }
    sleep(20_000).await;
    let (mut seen, mut last) = (0, None);
    loop {
        let call = receive_from_async(receiver, Vec::from([0; 600]), current());
        if seen > 0 {
            // If no datagram is left, the call waits until it is cancelled.
            sleep(2_000).await;
            call.cancel();
        }
        let (count, bytes) = call.await;
        let Ok(count) = count else {
            break;
        };
        let n = bytes[datagram::HEADER];
        ensure!(count == datagram::HEADER + 500, "{count} bytes");
        ensure!(
            bytes[datagram::HEADER..count].iter().all(|byte| *byte == n) && last < Some(n),
            "{n} after {last:?}"
        );
        last = Some(n);
        seen += 1;
    }
    // The buffer of the receiver holds a few of the 100 datagrams.
    ensure!((4..100).contains(&seen), "{seen} datagrams arrived");
    for file in [receiver, sender] {
        sys::close(file).map_err(message)?;
    }
    Ok(())
}

pub(crate) async fn wrong_datagrams_are_errors() -> Outcome {
    let socket = datagrams(3002).map_err(message)?;
    let stream = sys::socket().map_err(message)? as usize;
    let long = Vec::from([0; datagram::MAX_LEN + 1]);
    let mut short = [0; datagram::HEADER - 1];
    let answers = [
        (datagrams(3002), Error::InUse),
        (send_to(socket, &long, (SELF, 3003)), Error::BadArgument),
        (send_to(socket, b"x", (SELF, 0)), Error::BadArgument),
        (send_to(socket, b"x", ([0; 4], 9)), Error::BadArgument),
        (send_to(stream, b"x", (SELF, 9)), Error::BadFile),
        (receive_from(socket, &mut short), Error::BadArgument),
        (receive_from(stream, &mut [0; 9]), Error::BadFile),
        (read(socket, &mut [0]), Error::BadFile),
        (write(socket, b"x").map(|_| 0), Error::BadFile),
        (sys::listen(socket, 1).map(|_| 0), Error::BadFile),
        (sys::connect(socket, 0, 9).map(|_| 0), Error::BadFile),
    ];
    for (n, (answer, expected)) in answers.into_iter().enumerate() {
        ensure!(answer == Err(expected), "call {n}: {answer:?}");
    }
    for file in [socket, stream] {
        sys::close(file).map_err(message)?;
    }
    let reopened = datagrams(3002).map_err(message)?;
    sys::close(reopened).map_err(message)?;
    Ok(())
}
