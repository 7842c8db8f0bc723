//! The rest of a request's body that nobody reads.
//!
//! A client may send all of its body before it reads the answer. If the server closes the
//! connection or resets the stream meanwhile, some clients report that instead of the answer. So
//! the rest is read and dropped for [`NEXT_REQUEST`] at most: in HTTP/2 by a coroutine, in HTTP/1
//! when the connection is closed (`connection::watched`).

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};

use hyper::body::{Body, Incoming};
use upshift::time;

use crate::connection::clocks::NEXT_REQUEST;
use crate::connection::conn::Conn;
use crate::request::priority::Urgency;

/// Gives up the rest of a body whose request has been answered, or soon is.
pub(crate) fn leave(body: Incoming, conn: &Conn) {
    if body.is_end_stream() {
        return;
    }
    if !conn.clocks.is_two() {
        conn.clocks.leaves_unread();
        return;
    }
    // Behind more urgent requests, as a client is received that sends more than requests.
    let level = Urgency::default().level();
    let rest = time::timeout(NEXT_REQUEST, read_and_drop(body));
    // Outside a runtime the stream is reset at once.
    if let Ok(handle) = upshift::try_spawn(rest, level) {
        handle.detach();
    }
}

/// Reads up to the end, or an error.
async fn read_and_drop(mut body: Incoming) {
    poll_fn(|cx| {
        loop {
            ready!(upshift::task::poll_piece(cx));
            if !matches!(ready!(Pin::new(&mut body).poll_frame(cx)), Some(Ok(_))) {
                return Poll::Ready(());
            }
        }
    })
    .await;
}
