//! What TCP and Unix streams have in common: a macro that makes a connection type
//! and its halves out of a [`Reader`](super::reader::Reader) and a
//! [`Writer`](super::writer::Writer).

/// Defines `$stream`, `ReadHalf`, `WriteHalf`, `OwnedReadHalf`, `OwnedWriteHalf`
/// and `ReuniteError` in the calling module.
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

            /// Two halves that borrow the connection.
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

            /// Two halves for two coroutines. The connection closes when both are
            /// gone; the write half ends its direction when it is dropped.
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

        /// The reading half of a connection, borrowed.
        pub struct ReadHalf<'a> {
            reader: &'a mut Reader,
        }

        /// The writing half of a connection, borrowed.
        pub struct WriteHalf<'a> {
            writer: &'a mut Writer,
        }

        /// The reading half of a connection.
        pub struct OwnedReadHalf {
            reader: Reader,
        }

        /// The writing half of a connection.
        pub struct OwnedWriteHalf {
            /// Taken out only by `reunite` and `forget`, which end the half.
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

            /// Makes one connection of its two halves again.
            ///
            /// # Errors
            /// If they are of different connections: both come back.
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
                self.writer.as_mut().expect("only `reunite` takes it out")
            }
            fn sender(&self) -> &Writer {
                self.writer.as_ref().expect("only `reunite` takes it out")
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

        /// Two halves that are not of one connection.
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
                    /// Waits for data, in one of the vCPU's own buffers. Empty: the
                    /// peer has finished. Dropping the future loses nothing.
                    ///
                    /// A buffer goes back to the kernel when it is dropped; do not
                    /// hoard them.
                    ///
                    /// # Errors
                    /// `ConnectionReset` and the like; and outside a runtime.
                    pub fn recv(&mut self) -> impl Future<Output = io::Result<RecvBuf>> + Send {
                        self.source().recv()
                    }

                    /// Reads into `buffer` from its first byte on, at most its
                    /// capacity. 0 bytes: the peer has finished, or there is no room.
                    /// Dropping the future may lose data; use `recv` where that matters.
                    ///
                    /// # Errors
                    /// `ConnectionReset` and the like; and outside a runtime.
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
                    /// Writes some of `buffer`.
                    ///
                    /// # Errors
                    /// `BrokenPipe`, `ConnectionReset`, …; and outside a runtime.
                    pub fn write<B: IoBuf>(
                        &mut self,
                        buffer: B,
                    ) -> impl Future<Output = (io::Result<usize>, B)> {
                        writer::write(&self.sender().fd, buffer)
                    }

                    /// Writes all of `buffer`. A peer that does not read makes this
                    /// wait.
                    ///
                    /// # Errors
                    /// As `write`; an unknown part may have been sent.
                    pub fn write_all<B: IoBuf>(
                        &mut self,
                        buffer: B,
                    ) -> impl Future<Output = (io::Result<()>, B)> {
                        writer::write_all(&self.sender().fd, buffer)
                    }

                    /// Writes some of several buffers, at most 1024, in one operation.
                    ///
                    /// # Errors
                    /// As `write`.
                    pub async fn write_vectored<B: IoBuf>(
                        &mut self,
                        buffers: Vec<B>,
                    ) -> (io::Result<usize>, Vec<B>) {
                        writer::write_vectored(&self.sender().fd, buffers).await
                    }

                    /// Writes all of several buffers, at most 1024, in one operation.
                    ///
                    /// # Errors
                    /// As `write_all`.
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
                    /// Tells the peer that nothing more will come.
                    ///
                    /// # Errors
                    /// `NotConnected` when the peer has gone.
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
                    // The peer may have gone already.
                    let _ = writer.shutdown();
                }
            }
        }

        impl From<OwnedFd> for $stream {
            /// Takes over a connected socket, which must be in blocking mode.
            fn from(fd: OwnedFd) -> $stream {
                $stream::new(Descriptor::new(fd))
            }
        }
    };
}
pub(crate) use connection;
