//! A TCP connection and its halves.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::TcpSocket;
use super::connection::connection;
use super::resolve::ToSocketAddrs;

connection! {
    /// A TCP connection.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::{Priority, net::{TcpListener, TcpStream}};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let echo = upshift::spawn(async move {
    ///     let (mut stream, _) = listener.accept().await?;
    ///     loop {
    ///         let data = stream.recv().await?;
    ///         if data.is_empty() {
    ///             return std::io::Result::Ok(());
    ///         }
    ///         stream.write_all(data.to_vec()).await.0?;
    ///     }
    /// }, Priority::Inherit);
    ///
    /// let mut stream = TcpStream::connect(address).await?;
    /// stream.write_all("ping").await.0?;
    /// let (count, buffer) = stream.read(vec![0; 64]).await;
    /// assert_eq!(&buffer[..count?], b"ping");
    /// drop(stream);
    /// echo.await.unwrap()?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    TcpStream, Tcp
}

impl TcpStream {
    /// Converts a Unix stream for HTTP. This is possible because reader and writer are the same for
    /// all families.
    #[cfg(feature = "hyper")]
    pub(crate) fn from_unix(stream: super::UnixStream) -> TcpStream {
        let (reader, writer) = stream.into_parts();
        TcpStream { reader, writer }
    }

    /// Connects to the first of the addresses that answers. Host names are looked up by the
    /// resolver of the C library on a thread for blocking calls.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the attempt is cancelled and its socket closed.
    ///
    /// # Errors
    /// The error of the last address tried, or of the lookup; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let address = listener.local_addr()?;
    /// let stream = TcpStream::connect(address).await?;
    /// assert_eq!(stream.peer_addr()?, address);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn connect(addresses: impl ToSocketAddrs) -> io::Result<TcpStream> {
        let mut last_error =
            io::Error::new(io::ErrorKind::InvalidInput, "no address to connect to");
        for address in super::resolve::resolve(addresses).await? {
            // A machine without IPv6 cannot create a socket for an IPv6 address.
            let result = match TcpSocket::for_address(address) {
                Ok(socket) => socket.connect(address).await,
                Err(error) => Err(error),
            };
            match result {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Converts a connection of the standard library.
    ///
    /// # Errors
    /// If the socket cannot be put into blocking mode, which the ring needs.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::net::{TcpListener, TcpStream};
    ///
    /// let listener = TcpListener::bind("127.0.0.1:0")?;
    /// let std = std::net::TcpStream::connect(listener.local_addr()?)?;
    /// let mut stream = TcpStream::from_std(std)?;
    /// let (mut server, _) = listener.accept().await?;
    /// stream.write_all("hello").await.0?;
    /// assert_eq!(&server.recv().await?[..], b"hello");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn from_std(stream: std::net::TcpStream) -> io::Result<TcpStream> {
        stream.set_nonblocking(false)?;
        Ok(TcpStream::from(OwnedFd::from(stream)))
    }
}
