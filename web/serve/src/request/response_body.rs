//! Implements the body of a response for [`ActiveRequest`]. It hands out and counts the pieces in
//! the order of the connection's streams.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::request::active::ActiveRequest;
use crate::request::body::BoxError;

/// Maximum number of bytes handed out at once; a larger piece would occupy the coroutine, and an
/// HTTP/2 connection, for too long.
const MAX_PIECE: usize = 64 * 1024;

impl ActiveRequest {
    #[inline]
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.rest.is_empty() {
            let piece = self.rest.split_to(self.rest.len().min(MAX_PIECE));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) if frame.data_ref().is_some_and(|data| data.len() > MAX_PIECE) => {
                let mut data = frame.into_data().unwrap_or_default();
                self.rest = data.split_off(MAX_PIECE);
                Some(Ok(Frame::data(data)))
            }
            frame => frame,
        })
    }
}

impl HttpBody for ActiveRequest {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let this = &mut *self;
        this.set_offering(false);
        if this.is_http2() {
            let sending = &this.conn.sending;
            if sending
                .poll_turn(cx, &this.entry, &mut this.position)
                .is_pending()
            {
                // Handed-out bytes may be stuck in streams without a window, which hyper does not
                // report. After its next poll, the connection no longer counts them.
                this.conn.wake();
                return Poll::Pending;
            }
        }
        let may_be_long = !this.rest.is_empty() || !this.body.is_in_memory();
        if may_be_long && upshift::task::poll_piece(cx).is_pending() {
            if this.is_http2() {
                this.conn.sending.keep_turn(cx, &this.entry, this.position);
            }
            return Poll::Pending;
        }
        let frame = ready!(this.poll_piece(cx));
        if let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            this.bytes += bytes as u64;
            if this.is_http2() && this.conn.sending.note_handed_out(bytes) {
                this.conn.wake();
            }
        }
        this.set_offering(frame.is_some());
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
