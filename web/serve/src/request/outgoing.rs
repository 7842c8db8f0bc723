//! A request as the body of its response: it hands out and counts the pieces, each in its turn.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::request::body::BoxError;
use crate::request::under_way::Request;

/// Bytes that are sent at once at most: a larger piece would keep the coroutine, and the connection
/// of HTTP/2, for too long.
const PIECE: usize = 64 * 1024;

impl Request {
    /// Returns the next piece of the body.
    #[inline]
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.rest.is_empty() {
            let piece = self.rest.split_to(self.rest.len().min(PIECE));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) if frame.data_ref().is_some_and(|data| data.len() > PIECE) => {
                let mut data = frame.into_data().unwrap_or_default();
                self.rest = data.split_off(PIECE);
                Some(Ok(Frame::data(data)))
            }
            frame => frame,
        })
    }
}

impl HttpBody for Request {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.offer(false);
        if this.is_two() {
            let sending = &this.conn.sending;
            if sending
                .poll_turn(cx, &this.entry, &mut this.turn)
                .is_pending()
            {
                // Bytes that were handed out may be stuck in streams without a window, of which the
                // library does not tell the connection.
                this.conn.wake();
                return Poll::Pending;
            }
        }
        let more = !this.rest.is_empty() || !this.body.is_at_hand();
        if more && upshift::task::poll_piece(cx).is_pending() {
            if this.is_two() {
                this.conn.sending.keep_turn(cx, &this.entry, this.turn);
            }
            return Poll::Pending;
        }
        let frame = ready!(this.poll_piece(cx));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            this.bytes += bytes as u64;
            if this.is_two() && this.conn.sending.handed(bytes) {
                this.conn.wake();
            }
        }
        this.offer(frame.is_some());
        Poll::Ready(frame)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.body.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
