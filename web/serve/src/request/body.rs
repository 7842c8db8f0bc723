//! The body of a response: bytes in memory, a file, or the body of another library.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use http_body_util::combinators::UnsyncBoxBody;

use crate::connection::send_file::{SendFileQueue, placeholder};
use crate::files::{CompressedBody, FileBody};

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;

/// The body of a response.
pub struct Body(Kind);

enum Kind {
    Whole(Option<Bytes>),
    File(FileBody),
    /// The connection sends the file, and the body hands out placeholders for it.
    SendFile(Box<Placeholders>),
    Compressed(Box<CompressedBody>),
    Boxed(UnsyncBoxBody<Bytes, BoxError>),
}

struct Placeholders {
    /// File, which is passed to the connection with the first placeholder, and thus not at all for
    /// a response to HEAD.
    file: Option<FileBody>,
    left: u64,
    queue: Arc<SendFileQueue>,
}

impl Placeholders {
    fn next(&mut self) -> Option<Bytes> {
        if let Some(file) = self.file.take() {
            self.queue.push(file);
        }
        if self.left == 0 {
            return None;
        }
        let bytes = placeholder(self.left);
        self.left -= bytes.len() as u64;
        Some(bytes)
    }
}

impl Body {
    /// Creates a body without bytes.
    #[must_use]
    pub fn empty() -> Body {
        Body(Kind::Whole(None))
    }

    /// Wraps the body of another library.
    pub fn new<B>(body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Body(Kind::Boxed(body.map_err(Into::into).boxed_unsync()))
    }

    #[inline]
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.0, Kind::Whole(_))
    }

    pub(crate) fn file(file: FileBody) -> Body {
        Body(Kind::File(file))
    }

    /// Prepares a file for sending. A large file is added to `queue`, which sends it without a
    /// copy. Any other file is read now, if it is in the page cache and fits into one piece.
    pub(crate) fn prepare(&mut self, queue: Option<&Arc<SendFileQueue>>) {
        let Kind::File(file) = &self.0 else { return };
        match queue {
            Some(queue) if file.is_large() => {
                let left = file.left();
                if let Kind::File(file) = std::mem::replace(&mut self.0, Kind::Whole(None)) {
                    let (file, queue) = (Some(file), queue.clone());
                    self.0 = Kind::SendFile(Box::new(Placeholders { file, left, queue }));
                }
            }
            _ => {
                if let Some(bytes) = file.read_whole() {
                    *self = Body::from(bytes);
                }
            }
        }
    }

    pub(crate) fn compressed(file: CompressedBody) -> Body {
        Body(Kind::Compressed(Box::new(file)))
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
            Kind::SendFile(file) => Poll::Ready(file.next().map(|bytes| Ok(Frame::data(bytes)))),
            Kind::Compressed(file) => file
                .poll_chunk(cx)
                .map(|chunk| chunk.map(|chunk| chunk.map(Frame::data).map_err(Into::into))),
            Kind::Boxed(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Whole(bytes) => bytes.is_none(),
            Kind::File(file) => file.left() == 0,
            Kind::SendFile(file) => file.left == 0,
            Kind::Compressed(file) => file.is_done(),
            Kind::Boxed(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Kind::File(file) => SizeHint::with_exact(file.left()),
            Kind::SendFile(file) => SizeHint::with_exact(file.left),
            Kind::Compressed(_) => SizeHint::new(),
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
