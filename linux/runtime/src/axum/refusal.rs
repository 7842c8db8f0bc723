//! A compile error that points from `axum::serve` to [`serve`](super::serve()).
//!
//! `axum::serve` spawns its connections with tokio, so it must not accept a listener of this
//! runtime. axum's `Listener` is implemented under a bound that is never satisfied, so that the
//! compiler reports the bound, with the message below. The bound has a lifetime parameter, since
//! the compiler rejects an unsatisfiable bound without parameters at its definition.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use ::axum::serve::Listener;

use crate::net::unix::SocketAddr as UnixAddr;
use crate::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A trait without an implementation; its message is the compile error.
#[diagnostic::on_unimplemented(
    message = "`axum::serve` runs on one thread of tokio's, without levels: use `upshift::axum::serve` with `{Self}`",
    label = "a listener for `upshift::axum::serve`",
    note = "`upshift::axum::serve(listener, app)` takes the same arguments and runs on the vCPUs"
)]
pub trait UseUpshiftAxumServe<'a> {}

/// Implements axum's `Listener` under the bound.
macro_rules! refuse {
    ($listener:ty, $io:ty, $addr:ty) => {
        #[doc(hidden)]
        impl Listener for $listener
        where
            for<'a> $listener: UseUpshiftAxumServe<'a>,
        {
            type Io = $io;
            type Addr = $addr;

            async fn accept(&mut self) -> ($io, $addr) {
                pending().await
            }

            fn local_addr(&self) -> io::Result<$addr> {
                crate::hyper::Listener::local_addr(self)
            }
        }
    };
}

refuse!(TcpListener, TcpStream, SocketAddr);
refuse!(UnixListener, UnixStream, UnixAddr);
#[cfg(feature = "tls")]
refuse!(
    crate::hyper::TlsListener,
    crate::tls::TlsStream<crate::hyper::Io>,
    SocketAddr
);
