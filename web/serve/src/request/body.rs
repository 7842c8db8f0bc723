//! The body of a response.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::connection::Conn;
use crate::files::{FileBody, Squeezed};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a response.
pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    File(FileBody),
    Squeezed(Box<Squeezed>),
    Boxed(UnsyncBoxBody<Bytes, BoxError>),
}

impl Body {
    /// No bytes.
    #[must_use]
    pub fn empty() -> Body {
        Body(Kind::Whole(None))
    }

    /// The body of another library.
    pub fn new<B>(body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Body(Kind::Boxed(body.map_err(Into::into).boxed_unsync()))
    }

    /// All of it is there: the next piece takes no time.
    #[inline]
    pub(crate) fn is_at_hand(&self) -> bool {
        matches!(self.0, Kind::Whole(_))
    }

    pub(crate) fn file(file: FileBody) -> Body {
        Body(Kind::File(file))
    }

    /// The bytes of a file may go to the socket without a copy, past what the HTTP library writes.
    pub(crate) fn go_past(&mut self, conn: &Arc<Conn>) {
        if let Kind::File(file) = &mut self.0 {
            file.go_past(conn);
        }
    }

    /// A file of one piece that does not go past is read at once, if it can be: [`is_at_hand`](Body::is_at_hand).
    pub(crate) fn read_piece(&mut self) {
        if let Kind::File(file) = &self.0
            && let Some(bytes) = file.whole()
        {
            *self = Body::from(bytes);
        }
    }

    pub(crate) fn squeezed(file: Squeezed) -> Body {
        Body(Kind::Squeezed(Box::new(file)))
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Body {
        let bytes = bytes.into();
        Body(Kind::Whole((!bytes.is_empty()).then_some(bytes)))
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Kind::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::File(file) => file
                .poll_chunk(cx)
                .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data).map_err(Into::into))),
            Kind::Squeezed(file) => file
                .poll_chunk(cx)
                .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data).map_err(Into::into))),
            Kind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::File(file) => file.left() == 0,
            Kind::Squeezed(file) => file.is_over(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::File(file) => SizeHint::with_exact(file.left()),
            Kind::Squeezed(_) => SizeHint::new(),
            Kind::Boxed(body) => body.size_hint(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("size", &self.size_hint())
            .finish()
    }
}
