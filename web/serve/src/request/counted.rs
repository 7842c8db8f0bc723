//! What a client gets of a response: at most a piece at a time, when it is its turn, and counted.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Version;
use http_body::{Body as HttpBody, Frame, SizeHint};

use crate::request::body::{Body, BoxError};
use crate::request::exchange::Exchange;

/// What is sent at once: a larger one would keep the coroutine, and the connection of HTTP/2, for too long.
const PIECE: usize = 64 * 1024;

/// The body of a response, whose bytes are counted; its drop is the end of the request.
pub(crate) struct Counted {
    inner: Body,
    /// Of a piece that was too large, what has not been handed out.
    rest: Bytes,
    exchange: Exchange,
    /// The client has to take what was handed out. Of HTTP/1 the socket tells.
    offers: bool,
}

impl Counted {
    pub(crate) fn new(inner: Body, exchange: Exchange) -> Counted {
        let mut this = Counted {
            inner,
            rest: Bytes::new(),
            exchange,
            offers: false,
        };
        this.offer(true);
        this
    }

    /// What comes next, at most a piece of it.
    #[inline]
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if !self.rest.is_empty() {
            let piece = self.rest.split_to(self.rest.len().min(PIECE));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) if frame.data_ref().is_some_and(|data| data.len() > PIECE) => {
                let mut data = frame.into_data().unwrap_or_default();
                self.rest = data.split_off(PIECE);
                Some(Ok(Frame::data(data)))
            }
            frame => frame,
        })
    }

    #[inline]
    fn offer(&mut self, offers: bool) {
        if self.exchange.version < Version::HTTP_2 || self.offers == offers {
            return;
        }
        self.offers = offers;
        if offers {
            self.exchange.entered.conn.offers();
        } else {
            self.exchange.entered.conn.offers_no_more();
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.offer(false);
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = BoxError;

    #[inline]
    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        self.offer(false);
        let this = &mut *self;
        let two = this.exchange.version >= Version::HTTP_2;
        if two {
            let Exchange {
                entered,
                entry,
                turn,
                ..
            } = &mut this.exchange;
            let conn = &entered.conn;
            if conn.sending.poll_turn(cx, entry, turn).is_pending() {
                // What was handed out may be stuck in streams that have no window, of which the library does not
                // tell the connection.
                conn.wake();
                return Poll::Pending;
            }
        }
        let more = !this.rest.is_empty() || !this.inner.is_at_hand();
        if more && upshift::task::poll_piece(cx).is_pending() {
            if two {
                let exchange = &this.exchange;
                let sending = &exchange.entered.conn.sending;
                sending.keep_turn(cx, &exchange.entry, exchange.turn);
            }
            return Poll::Pending;
        }
        let frame = ready!(this.poll_piece(cx));
        if two && let Some(Ok(frame)) = &frame {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            if this.exchange.entered.conn.sending.handed(bytes) {
                this.exchange.entered.conn.wake();
            }
        }
        self.offer(frame.is_some());
        if let Some(Ok(frame)) = &frame {
            self.exchange.bytes += frame.data_ref().map_or(0, Bytes::len) as u64;
        }
        Poll::Ready(frame)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.inner.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        let (inner, rest) = (self.inner.size_hint(), self.rest.len() as u64);
        let mut hint = SizeHint::new();
        hint.set_lower(inner.lower() + rest);
        if let Some(upper) = inner.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}
