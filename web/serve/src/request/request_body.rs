//! The body of a request: limited in bytes, and timed while a handler waits for it.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use hyper::body::Incoming;

use crate::connection::conn::Conn;
use crate::request::body::BoxError;
use crate::request::upload;

/// The body of a request: limited in bytes, and timed while a handler waits for it.
pub struct RequestBody {
    /// `None` after its end.
    inner: Option<Incoming>,
    conn: Arc<Conn>,
    left: u64,
    /// It has been waited for, and is not over.
    awaited: bool,
}

/// The body of a request is larger than the server takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge;

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body of the request is larger than this server takes")
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
            self.conn.clocks.waits_for_body();
            return Poll::Pending;
        };
        let Some(frame) = frame.transpose()? else {
            self.conn.clocks.has_body();
            self.inner = None;
            return Poll::Ready(None);
        };
        let length = frame.data_ref().map_or(0, Bytes::len) as u64;
        self.conn.clocks.has_body();
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
            upload::leave(inner, &self.conn);
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
