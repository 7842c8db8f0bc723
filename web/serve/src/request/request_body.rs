//! The body of a request. Its length is limited, and its time-out runs while a handler waits for
//! it.
//!
//! A client may send its whole body before it reads the response. If the server closes the
//! connection or resets the stream meanwhile, some clients report this instead of the response. So
//! the server reads and drops an unread remainder, for [`REQUEST_GRACE`] at most. In HTTP/2 a
//! coroutine does this; in HTTP/1 it happens when the connection is closed
//! (`connection::observed`).

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;
use upshift::time;

use crate::connection::clocks::REQUEST_GRACE;
use crate::connection::conn::Conn;
use crate::request::body::BoxError;
use crate::request::priority::Urgency;

/// The body of a request, which is limited in bytes, and timed while a handler waits for it.
pub struct RequestBody {
    inner: Option<Incoming>,
    conn: Arc<Conn>,
    /// Number of bytes that may still arrive.
    left: u64,
    /// Set once a handler has waited for the body.
    awaited: bool,
}

/// Error of a body that is larger than the server accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request is larger than this server accepts")
    }
}

impl Error for TooLarge {}

impl RequestBody {
    pub(crate) fn new(inner: Incoming, conn: Arc<Conn>, limit: u64) -> RequestBody {
        RequestBody {
            inner: Some(inner),
            conn,
            left: limit,
            awaited: false,
        }
    }
}

impl HttpBody for RequestBody {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) else {
            if !self.awaited {
                self.awaited = true;
                self.conn.clocks.begin_body();
            }
            self.conn.clocks.begin_body_wait();
            return Poll::Pending;
        };
        let Some(frame) = frame.transpose()? else {
            self.conn.clocks.end_body_wait();
            self.inner = None;
            return Poll::Ready(None);
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        self.conn.clocks.end_body_wait();
        if length > self.left {
            self.left = 0;
            return Poll::Ready(Some(Err(TooLarge.into())));
        }
        self.left -= length;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let inner = self.inner.as_ref();
        inner.map_or_else(|| SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if self.awaited {
            self.conn.clocks.end_body();
        }
        if let Some(inner) = self.inner.take() {
            discard(inner, &self.conn);
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestBody")
            .field("left", &self.left)
            .finish_non_exhaustive()
    }
}

/// Has an unread body read and dropped.
pub(super) fn discard(body: Incoming, conn: &Conn) {
    if body.is_end_stream() {
        return;
    }
    if !conn.clocks.is_http2() {
        conn.clocks.note_unread_body();
        return;
    }
    // At this level, the work delays no request that is more urgent than the default.
    let level = Urgency::default().level();
    let discarding = time::timeout(REQUEST_GRACE, read_and_drop(body));
    // Outside of a runtime the stream is reset at once.
    if let Ok(handle) = upshift::try_spawn(discarding, level) {
        handle.detach();
    }
}

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
