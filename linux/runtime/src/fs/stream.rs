//! A file read and written from front to back.
//!
//! ```text
//!            fill: ReadAt in flight ─► data ─► consumed ─┐
//!   position ─────────────────────────────────────────────┤ a write or a seek discards data
//!            write: copied ─► WriteAt in flight ─► done ──┘ the next call waits for it
//!                                              └► failed: the position goes back
//! ```
//!
//! A caller may drop a call in the middle, and the stream cannot tell whether the next call
//! continues the dropped call. So an earlier call may have started the operation whose result the
//! stream gets, and the stream checks the result before using it. Bytes that were read
//! ahead are used only at the position for which they were read. The length and the end of the file
//! are checked once more when the operation that asked for them has completed.
//!
//! A stream has one buffer of [`BUFFER_BYTES`] per direction, allocated on first use. An operation
//! in flight owns its buffer.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use upshift_core::Priority;
use upshift_ring::{IoBuf, Slice, Submission, op};

use super::read::start_read;
use super::{File, advance_position, current_ioprio, invalid};
use crate::coroutine::coop;
use crate::io::{Sink, Source, impl_read, impl_write};
use crate::net::start;

/// Size of the buffer of a direction.
const BUFFER_BYTES: usize = 64 << 10;

/// A file with a position, for the traits of [`io`](crate::io); created by [`File::into_stream`].
///
/// A write is reported as done as soon as it is in flight; the next call reports its error, so
/// flush before you rely on a write. After an error the position is behind the last byte written,
/// and the remaining bytes of the failed write are lost, as with a file of the standard library. A
/// stream that is dropped without a flush still completes its write, unless the runtime ends first.
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// # let path = std::env::temp_dir().join(format!("upshift-stream-{}", std::process::id()));
/// use upshift::fs::File;
/// use upshift::io::{AsyncBufReadExt, AsyncWriteExt, StreamExt};
///
/// let mut out = File::create(&path).await?.into_stream();
/// out.write_all(b"one\ntwo\n").await?;
/// out.flush().await?;
///
/// let lines: Vec<_> = File::open(&path).await?.into_stream().lines().try_collect().await?;
/// let lines: Vec<String> = lines;
/// assert_eq!(lines, ["one", "two"]);
/// # std::fs::remove_file(&path)?;
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
#[derive(Debug)]
pub struct FileStream {
    file: File,
    position: u64,
    /// Buffer of bytes read ahead.
    data: Vec<u8>,
    /// Index in `data` of the first byte that has not been read.
    start: usize,
    reading: Option<Submission<op::ReadAt<Vec<u8>>>>,
    writing: Option<Writing>,
    /// Buffer of writes while no write is in flight.
    spare_buffer: Vec<u8>,
    /// Query of the file's length, for a seek from the end.
    seeking: Option<Submission<op::Statx>>,
}

#[derive(Debug)]
struct Writing {
    file: File,
    submission: Submission<op::WriteAt<Slice<Vec<u8>>>>,
    /// Position in the file of the buffer's first byte.
    offset: u64,
    written: usize,
}

impl Writing {
    fn start(file: &File, buffer: Vec<u8>, offset: u64, written: usize) -> io::Result<Writing> {
        let bytes = buffer.slice_from(written);
        let write = op::WriteAt::new(file.fd().clone(), bytes, advance_position(offset, written));
        let write = write.copied(file.is_cacheable());
        Ok(Writing {
            file: file.clone(),
            submission: start(write.ioprio(current_ioprio()))?,
            offset,
            written,
        })
    }

    /// Continues until everything is written, and returns the buffer. After an error, `written` is
    /// the number of bytes that have been written.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Vec<u8>>> {
        loop {
            let (result, slice) = ready!(Pin::new(&mut self.submission).poll(cx));
            let buffer = slice.into_inner();
            self.written += match result {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => count,
                Err(error) if crate::net::is_cancelled(&error) => 0,
                Err(error) => return Poll::Ready(Err(error)),
            };
            if self.written == buffer.len() {
                return Poll::Ready(Ok(buffer));
            }
            *self = Writing::start(&self.file, buffer, self.offset, self.written)?;
        }
    }
}

/// Slices a buffer from an index to its end, to continue after a short write.
trait SliceFrom {
    fn slice_from(self, start: usize) -> Slice<Vec<u8>>;
}

impl SliceFrom for Vec<u8> {
    fn slice_from(self, start: usize) -> Slice<Vec<u8>> {
        let end = self.len();
        self.slice(start..end)
    }
}

impl FileStream {
    /// Creates a stream that starts at the beginning of the file.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-stream3-{}", std::process::id()));
    /// use upshift::fs::{self, File, FileStream};
    /// use upshift::io::{AsyncBufReadExt, StreamExt};
    ///
    /// fs::write(&path, "one\ntwo\n").await?;
    /// let mut lines = FileStream::new(File::open(&path).await?).lines();
    /// assert_eq!(lines.next().await.transpose()?.as_deref(), Some("one"));
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn new(file: File) -> FileStream {
        FileStream::at(file, 0)
    }

    /// Creates a stream that starts at a position, in bytes.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// # let path = std::env::temp_dir().join(format!("upshift-streamat-{}", std::process::id()));
    /// use upshift::fs::{self, File, FileStream};
    /// use upshift::io::AsyncReadExt;
    ///
    /// fs::write(&path, "header, body").await?;
    /// let mut stream = FileStream::at(File::open(&path).await?, 8);
    /// let mut body = String::new();
    /// stream.read_to_string(&mut body).await?;
    /// assert_eq!(body, "body");
    /// # std::fs::remove_file(&path)?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn at(file: File, position: u64) -> FileStream {
        FileStream {
            file,
            position,
            data: Vec::new(),
            start: 0,
            reading: None,
            writing: None,
            spare_buffer: Vec::new(),
            seeking: None,
        }
    }

    /// Returns the file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the position of the next read or write, in bytes. A write in flight counts in full;
    /// the call that reports its failure subtracts the missing bytes.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Waits for the write in flight. If it has failed, moves the position back.
    fn poll_written(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(writing) = &mut self.writing {
            let result = ready!(writing.poll(cx));
            if result.is_err() {
                self.position = advance_position(writing.offset, writing.written);
            }
            self.writing = None;
            self.spare_buffer = result?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits for the write in flight, on behalf of a call other than a seek.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.seeking = None;
        self.poll_written(cx)
    }

    fn poll_len(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<u64>> {
        loop {
            let statx = match &mut self.seeking {
                Some(statx) => statx,
                None => self
                    .seeking
                    .insert(start(op::Statx::from_fd(self.file.fd().clone()))?),
            };
            let answer = ready!(Pin::new(statx).poll(cx));
            self.seeking = None;
            match answer {
                // A dropped call may have started this operation long ago.
                Ok(answer) => return Poll::Ready(Ok(self.file.known_len(answer.stx_size))),
                Err(error) if crate::net::is_cancelled(&error) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    fn discard_read_ahead(&mut self) {
        self.reading = None;
        self.data.clear();
        self.start = 0;
    }

    fn poll_seek(&mut self, cx: &mut Context<'_>, to: SeekFrom) -> Poll<io::Result<u64>> {
        ready!(self.poll_written(cx))?;
        let (base, delta) = match to {
            SeekFrom::Start(position) => (position, 0),
            SeekFrom::Current(delta) => (self.position, delta),
            SeekFrom::End(delta) => (ready!(self.poll_len(cx))?, delta),
        };
        self.seeking = None;
        let position = base
            .checked_add_signed(delta)
            .ok_or_else(|| invalid("a seek to before the beginning of the file"))?;
        if i64::try_from(position).is_err() {
            return Poll::Ready(Err(invalid("a seek beyond the last position of a file")));
        }
        if position != self.position {
            self.discard_read_ahead();
            self.position = position;
        }
        Poll::Ready(Ok(position))
    }
}

impl Source for FileStream {
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.start < self.data.len() {
            return Poll::Ready(Ok(&self.data[self.start..]));
        }
        ready!(coop::poll_proceed(cx));
        ready!(self.poll_ready(cx))?;
        loop {
            let reading = match &mut self.reading {
                Some(reading) => reading,
                None => {
                    let mut buffer = std::mem::take(&mut self.data);
                    buffer.reserve_exact(BUFFER_BYTES);
                    self.start = 0;
                    if self.file.read_cached(&mut buffer, self.position) {
                        self.data = buffer;
                        return Poll::Ready(Ok(&self.data));
                    }
                    let read = op::ReadAt::new(self.file.fd().clone(), buffer, self.position);
                    self.reading.insert(start_read(read)?)
                }
            };
            let (result, mut buffer) = ready!(Pin::new(reading).poll(cx));
            self.reading = None;
            match result {
                Ok(0) => {
                    // A dropped call may have started this read, and the file may have grown since.
                    self.file.read_behind_end(&mut buffer, self.position);
                    self.data = buffer;
                    return Poll::Ready(Ok(&self.data));
                }
                Ok(_) => {
                    self.data = buffer;
                    return Poll::Ready(Ok(&self.data));
                }
                Err(error) => {
                    buffer.clear();
                    self.data = buffer;
                    if !crate::net::is_cancelled(&error) {
                        return Poll::Ready(Err(error));
                    }
                }
            }
        }
    }

    fn consume(&mut self, count: usize) {
        let count = count.min(self.data.len() - self.start);
        self.start += count;
        self.position = advance_position(self.position, count);
        if self.start == self.data.len() {
            self.data.clear();
            self.start = 0;
        }
    }
}

impl Sink for FileStream {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(coop::poll_proceed(cx));
        ready!(self.poll_ready(cx))?;
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.discard_read_ahead();
        let count = bytes.len().min(BUFFER_BYTES);
        let mut buffer = std::mem::take(&mut self.spare_buffer);
        buffer.clear();
        buffer.extend_from_slice(&bytes[..count]);
        self.writing = Some(Writing::start(&self.file, buffer, self.position, 0)?);
        self.position = advance_position(self.position, count);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx)
    }
}

impl_read!(FileStream);
impl_write!(FileStream);

impl futures_io::AsyncSeek for FileStream {
    fn poll_seek(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        position: SeekFrom,
    ) -> Poll<io::Result<u64>> {
        FileStream::poll_seek(self.get_mut(), cx, position)
    }
}

impl Drop for FileStream {
    fn drop(&mut self) {
        if let Some(mut writing) = self.writing.take() {
            let finish = std::future::poll_fn(move |cx| writing.poll(cx).map(drop));
            if let Ok(handle) = crate::try_spawn(finish, Priority::Inherit) {
                handle.detach();
            }
        }
    }
}
