//! A macro for TCP and Unix streams, which defines a connection type and its halves from a
//! [`Reader`](super::reader::Reader) and a [`Writer`](super::writer::Writer).

/// Defines `$stream`, `ReadHalf`, `WriteHalf`, `OwnedReadHalf`, `OwnedWriteHalf` and `ReuniteError`
/// in the calling module.
macro_rules! connection {
    ($(#[$documentation:meta])* $stream:ident, $family:ident) => {
        use std::fmt;
        use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

        use upshift_ring::{Fd, IoBuf, IoBufMut, RecvBuf};

        use crate::io::{Descriptor, Sink, Source, impl_read, impl_write};
        use crate::net::family::Family;
        use crate::net::reader::Reader;
        use crate::net::writer::{self, Writer};

        $(#[$documentation])*
        pub struct $stream {
            reader: Reader,
            writer: Writer,
        }

        impl $stream {
            pub(crate) fn new(fd: Descriptor) -> $stream {
                $stream {
                    writer: Writer::new(fd.share()),
                    reader: Reader::new(fd, Family::$family),
                }
            }

            pub(crate) fn into_descriptor(self) -> Descriptor {
                self.reader.fd
            }

            pub(crate) fn fd(&self) -> &Fd {
                &self.reader.fd
            }

            /// Splits the connection into two halves that borrow it.
            ///
            /// ```
            /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
            /// use upshift::net::UnixStream;
            ///
            /// let (mut one, mut other) = UnixStream::pair()?;
            /// let (mut reader, mut writer) = one.split();
            /// writer.write_all("question").await.0?;
            /// assert_eq!(&other.recv().await?[..], b"question");
            /// other.write_all("answer").await.0?;
            /// assert_eq!(&reader.recv().await?[..], b"answer");
            /// # std::io::Result::Ok(()) }).unwrap();
            /// ```
            pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
                (
                    ReadHalf {
                        reader: &mut self.reader,
                    },
                    WriteHalf {
                        writer: &mut self.writer,
                    },
                )
            }

            /// Splits the connection into two halves for two coroutines. The connection closes when
            /// both are dropped; dropping the write half ends its direction.
            ///
            /// ```
            /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
            /// use upshift::net::UnixStream;
            ///
            /// let (one, mut other) = UnixStream::pair()?;
            /// let (mut reader, mut writer) = one.into_split();
            /// let write = async move { writer.write_all("question").await.0 };
            /// let sender = upshift::task::spawn(write);
            /// assert_eq!(&other.recv().await?[..], b"question");
            /// sender.await??;
            /// other.write_all("answer").await.0?;
            /// assert_eq!(&reader.recv().await?[..], b"answer");
            /// # std::io::Result::Ok(()) }).unwrap();
            /// ```
            #[must_use]
            pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
                (
                    OwnedReadHalf {
                        reader: self.reader,
                    },
                    OwnedWriteHalf {
                        writer: Some(self.writer),
                    },
                )
            }
        }

        /// The read half of a connection, borrowed; created by `split`.
        pub struct ReadHalf<'a> {
            reader: &'a mut Reader,
        }

        /// The write half of a connection, borrowed; created by `split`.
        pub struct WriteHalf<'a> {
            writer: &'a mut Writer,
        }

        /// The read half of a connection; created by `into_split`.
        pub struct OwnedReadHalf {
            reader: Reader,
        }

        /// The write half of a connection; created by `into_split`.
        pub struct OwnedWriteHalf {
            /// Taken out only by `reunite`, which ends the half.
            writer: Option<Writer>,
        }

        impl ReadHalf<'_> {
            fn source(&mut self) -> &mut Reader {
                self.reader
            }
            fn receiver(&self) -> &Reader {
                self.reader
            }
        }

        impl OwnedReadHalf {
            fn source(&mut self) -> &mut Reader {
                &mut self.reader
            }
            fn receiver(&self) -> &Reader {
                &self.reader
            }

            /// Reunites both halves into one connection.
            ///
            /// # Errors
            /// Both halves, if they are of different connections.
            ///
            /// ```
            /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
            /// use upshift::net::UnixStream;
            ///
            /// let (one, other) = UnixStream::pair()?;
            /// let (reader, writer) = one.into_split();
            /// let one = reader.reunite(writer).expect("halves of one connection");
            /// let (reader, _) = one.into_split();
            /// let (_, writer) = other.into_split();
            /// assert!(reader.reunite(writer).is_err()); // Halves of two ends.
            /// # std::io::Result::Ok(()) }).unwrap();
            /// ```
            #[expect(clippy::result_large_err, reason = "the halves are given back")]
            pub fn reunite(self, mut other: OwnedWriteHalf) -> Result<$stream, ReuniteError> {
                match other.writer.take() {
                    Some(writer) if writer.fd.as_raw_fd() == self.reader.fd.as_raw_fd() => {
                        Ok($stream {
                            reader: self.reader,
                            writer,
                        })
                    }
                    writer => Err(ReuniteError(self, OwnedWriteHalf { writer })),
                }
            }
        }

        impl WriteHalf<'_> {
            fn sink(&mut self) -> &mut Writer {
                self.writer
            }
            fn sender(&self) -> &Writer {
                self.writer
            }
        }

        impl OwnedWriteHalf {
            fn sink(&mut self) -> &mut Writer {
                self.writer.as_mut().expect("`reunite` takes the writer")
            }
            fn sender(&self) -> &Writer {
                self.writer.as_ref().expect("`reunite` takes the writer")
            }
        }

        impl $stream {
            fn source(&mut self) -> &mut Reader {
                &mut self.reader
            }
            fn receiver(&self) -> &Reader {
                &self.reader
            }
            fn sink(&mut self) -> &mut Writer {
                &mut self.writer
            }
            fn sender(&self) -> &Writer {
                &self.writer
            }
        }

        /// The error of `reunite`: two halves of different connections.
        pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

        impl fmt::Display for ReuniteError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the halves are of different connections")
            }
        }

        impl fmt::Debug for ReuniteError {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple("ReuniteError")
                    .field(&self.0)
                    .field(&self.1)
                    .finish()
            }
        }

        impl std::error::Error for ReuniteError {}

        macro_rules! reads {
            ($half:ty, $name:expr) => {
                impl $half {
                    /// Receives data in one of the vCPU's own buffers. An empty buffer means that
                    /// the peer has ended its direction.
                    ///
                    /// A buffer goes back to the kernel when it is dropped, so do not hoard
                    /// buffers.
                    ///
                    /// # Cancellation safety
                    /// The future may be dropped at any time without losing data.
                    ///
                    /// # Errors
                    /// `ConnectionReset` and the like; also fails outside a runtime.
                    ///
                    /// ```
                    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
                    /// use upshift::net::UnixStream;
                    ///
                    /// let (mut one, mut other) = UnixStream::pair()?;
                    /// one.write_all("hello").await.0?;
                    /// drop(one);
                    /// assert_eq!(&other.recv().await?[..], b"hello");
                    /// assert!(other.recv().await?.is_empty()); // The end.
                    /// # std::io::Result::Ok(()) }).unwrap();
                    /// ```
                    pub fn recv(&mut self) -> impl Future<Output = io::Result<RecvBuf>> + Send {
                        self.source().recv()
                    }

                    /// Reads into `buffer`, from its first byte, at most its capacity. 0 bytes mean
                    /// that the peer has ended its direction, or that there is no room.
                    ///
                    /// # Cancellation safety
                    /// Not cancellation safe: a dropped future may lose data, and loses the buffer.
                    /// Use `recv` where that matters.
                    ///
                    /// # Errors
                    /// `ConnectionReset` and the like; also fails outside a runtime.
                    ///
                    /// ```
                    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
                    /// use upshift::net::UnixStream;
                    ///
                    /// let (mut one, mut other) = UnixStream::pair()?;
                    /// one.write_all("hello").await.0?;
                    /// // The buffer comes back with the number of bytes.
                    /// let (count, buffer) = other.read(vec![0; 64]).await;
                    /// assert_eq!(&buffer[..count?], b"hello");
                    /// # std::io::Result::Ok(()) }).unwrap();
                    /// ```
                    pub fn read<B: IoBufMut>(
                        &mut self,
                        buffer: B,
                    ) -> impl Future<Output = (io::Result<usize>, B)> {
                        self.source().read(buffer)
                    }
                }

                impl Source for $half {
                    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                        self.source().poll_fill(cx)
                    }

                    fn consume(&mut self, count: usize) {
                        self.source().consume(count);
                    }
                }

                impl AsFd for $half {
                    fn as_fd(&self) -> BorrowedFd<'_> {
                        self.receiver().fd.as_fd()
                    }
                }

                impl AsRawFd for $half {
                    fn as_raw_fd(&self) -> RawFd {
                        self.receiver().fd.as_raw_fd()
                    }
                }

                impl fmt::Debug for $half {
                    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.debug_tuple($name).field(&self.receiver().fd).finish()
                    }
                }

                impl_read!($half);
            };
        }

        macro_rules! writes {
            ($half:ty) => {
                impl $half {
                    /// Writes a part of `buffer`, and returns the length of the part.
                    ///
                    /// # Cancellation safety
                    /// Not cancellation safe: an unknown part may have been sent.
                    ///
                    /// # Errors
                    /// `BrokenPipe`, `ConnectionReset`, …; also fails outside a runtime.
                    pub fn write<B: IoBuf>(
                        &mut self,
                        buffer: B,
                    ) -> impl Future<Output = (io::Result<usize>, B)> {
                        writer::write(&self.sender().fd, buffer)
                    }

                    /// Writes all of `buffer`, waiting as long as the peer does not read.
                    ///
                    /// # Cancellation safety
                    /// Not cancellation safe: an unknown part may have been sent.
                    ///
                    /// # Errors
                    /// The errors of `write`; an unknown part may have been sent.
                    ///
                    /// ```
                    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
                    /// use upshift::net::UnixStream;
                    ///
                    /// let (mut one, mut other) = UnixStream::pair()?;
                    /// let (result, buffer) = one.write_all(vec![7; 10]).await;
                    /// result?;
                    /// assert_eq!(&other.recv().await?[..], &buffer[..]);
                    /// # std::io::Result::Ok(()) }).unwrap();
                    /// ```
                    pub fn write_all<B: IoBuf>(
                        &mut self,
                        buffer: B,
                    ) -> impl Future<Output = (io::Result<()>, B)> {
                        writer::write_all(&self.sender().fd, buffer)
                    }

                    /// Writes a part of several buffers, at most 1024, in one operation.
                    ///
                    /// # Cancellation safety
                    /// Not cancellation safe: an unknown part may have been sent.
                    ///
                    /// # Errors
                    /// The errors of `write`.
                    pub async fn write_vectored<B: IoBuf>(
                        &mut self,
                        buffers: Vec<B>,
                    ) -> (io::Result<usize>, Vec<B>) {
                        writer::write_vectored(&self.sender().fd, buffers).await
                    }

                    /// Writes all of several buffers, at most 1024, in one operation.
                    ///
                    /// # Cancellation safety
                    /// Not cancellation safe: an unknown part may have been sent.
                    ///
                    /// # Errors
                    /// The errors of `write_all`.
                    ///
                    /// ```
                    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
                    /// use upshift::net::UnixStream;
                    ///
                    /// let (mut one, mut other) = UnixStream::pair()?;
                    /// one.write_all_vectored(vec!["head", "body"]).await.0?;
                    /// assert_eq!(&other.recv().await?[..], b"headbody");
                    /// # std::io::Result::Ok(()) }).unwrap();
                    /// ```
                    pub async fn write_all_vectored<B: IoBuf>(
                        &mut self,
                        buffers: Vec<B>,
                    ) -> (io::Result<()>, Vec<B>) {
                        writer::write_all_vectored(&self.sender().fd, buffers).await
                    }
                }

                impl Sink for $half {
                    const VECTORED: bool = true;

                    fn poll_write(
                        &mut self,
                        cx: &mut Context<'_>,
                        bytes: &[u8],
                    ) -> Poll<io::Result<usize>> {
                        self.sink().poll_write(cx, bytes)
                    }

                    fn poll_write_vectored(
                        &mut self,
                        cx: &mut Context<'_>,
                        buffers: &[IoSlice<'_>],
                    ) -> Poll<io::Result<usize>> {
                        self.sink().poll_write_vectored(cx, buffers)
                    }

                    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                        self.sink().poll_flush(cx)
                    }

                    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                        self.sink().poll_close(cx)
                    }
                }

                impl_write!($half);
            };
        }

        macro_rules! write_half {
            ($half:ty) => {
                impl $half {
                    /// Ends the direction to the peer, which then reads the end of the stream.
                    ///
                    /// # Errors
                    /// `NotConnected` when the peer has closed the connection.
                    ///
                    /// ```
                    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
                    /// use upshift::net::UnixStream;
                    ///
                    /// let (one, mut other) = UnixStream::pair()?;
                    /// let (mut reader, writer) = one.into_split();
                    /// writer.shutdown()?;
                    /// assert!(other.recv().await?.is_empty()); // The end of one direction.
                    /// other.write_all("an answer").await.0?;
                    /// assert_eq!(&reader.recv().await?[..], b"an answer");
                    /// # std::io::Result::Ok(()) }).unwrap();
                    /// ```
                    pub fn shutdown(&self) -> io::Result<()> {
                        self.sender().shutdown()
                    }
                }

                impl fmt::Debug for $half {
                    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.debug_tuple("WriteHalf").field(&self.sender().fd).finish()
                    }
                }
            };
        }

        reads!($stream, stringify!($stream));
        reads!(ReadHalf<'_>, "ReadHalf");
        reads!(OwnedReadHalf, "ReadHalf");
        writes!($stream);
        writes!(WriteHalf<'_>);
        writes!(OwnedWriteHalf);
        write_half!(WriteHalf<'_>);
        write_half!(OwnedWriteHalf);

        impl Drop for OwnedWriteHalf {
            fn drop(&mut self) {
                if let Some(writer) = &self.writer {
                    // The peer may have closed the connection already.
                    let _ = writer.shutdown();
                }
            }
        }

        impl From<OwnedFd> for $stream {
            /// Converts a connected socket, which must be in blocking mode.
            fn from(fd: OwnedFd) -> $stream {
                $stream::new(Descriptor::new(fd))
            }
        }
    };
}
pub(crate) use connection;
