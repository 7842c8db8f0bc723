//! Lets axum's routers and handlers make the services of this runtime's connections, and lets
//! axum's `ConnectInfo` return the address of a client.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};

use ::axum::Router;
use ::axum::extract::connect_info::Connected;
use ::axum::handler::HandlerService;
use ::axum::routing::MethodRouter;
use tower_service::Service;

use super::{IncomingStream, Listener};

impl<L: Listener<Addr = SocketAddr>> Connected<IncomingStream<'_, L>> for SocketAddr {
    fn connect_info(stream: IncomingStream<'_, L>) -> SocketAddr {
        *stream.remote_addr()
    }
}

impl<L: Listener> Service<IncomingStream<'_, L>> for Router<()> {
    type Response = Router<()>;
    type Error = Infallible;
    type Future = Ready<Result<Router<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: IncomingStream<'_, L>) -> Self::Future {
        // Builds the routes once for the connection, not in each request.
        ready(Ok(self.clone().with_state(())))
    }
}

impl<L: Listener> Service<IncomingStream<'_, L>> for MethodRouter<()> {
    type Response = MethodRouter<()>;
    type Error = Infallible;
    type Future = Ready<Result<MethodRouter<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: IncomingStream<'_, L>) -> Self::Future {
        ready(Ok(self.clone().with_state(())))
    }
}

impl<H: Clone, T, S: Clone, L: Listener> Service<IncomingStream<'_, L>>
    for HandlerService<H, T, S>
{
    type Response = HandlerService<H, T, S>;
    type Error = Infallible;
    type Future = Ready<Result<HandlerService<H, T, S>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: IncomingStream<'_, L>) -> Self::Future {
        ready(Ok(self.clone()))
    }
}
