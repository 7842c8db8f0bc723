//! A compile error that leads from `axum::serve` to [`serve`](super::serve()).
//!
//! `axum::serve` spawns its connections with tokio, so a listener of this runtime must not compile
//! there. axum's trait is implemented all the same, on a condition that is never met: the compiler
//! then reports the condition, by its name and in the words below. It refuses such a condition
//! where it is written unless a lifetime is part of it.

use std::future::pending;
use std::io;
use std::net::SocketAddr;

use ::axum::serve::Listener;

use crate::net::unix::SocketAddr as UnixAddr;
use crate::net::{TcpListener, TcpStream, UnixListener, UnixStream};

/// A trait without an implementation.
#[diagnostic::on_unimplemented(
    message = "`axum::serve` runs on one thread of tokio's, without levels: use `upshift::axum::serve` with `{Self}`",
    label = "this belongs to `upshift::axum::serve`",
    note = "`upshift::axum::serve(listener, app)` takes the same arguments and runs on the vCPUs"
)]
pub trait UseUpshiftAxumServe<'a> {}

/// Implements axum's trait on that condition.
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
