//! A service that runs each HTTP request at a priority level of its own.
//!
//! An HTTP/1 connection is one coroutine that serves one request after the other; an HTTP/2 stream
//! is a coroutine of its own. The server reads and classifies requests at one level, the *level of
//! receiving*. The coroutine that first polls a request's future takes the level of the request. If
//! that is less urgent, the coroutine goes to the tail of that level's ready queue. The response is
//! sent at the level of the request. When the response has been handed over (its body is dropped),
//! an HTTP/1 connection returns to the level of receiving.
//!
//! A request costs two calls of `reprio` for the running coroutine and one pass through the ready
//! queue, or one call if the request has the level of its connection.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use ::hyper::body::{Body, Frame, Incoming, SizeHint};
use ::hyper::service::Service;
use ::hyper::{Request, Response, Version};
use pin_project_lite::pin_project;
use upshift_core::{CoroutineId, Level};

use super::{receiving, reply};
use crate::coroutine::coop;

pub(super) type Classify = Arc<dyn Fn(&Request<Incoming>) -> Level + Send + Sync>;

/// A hyper service that runs each request at the level that a function returns.
pub struct Levelled<S> {
    inner: S,
    classify: Classify,
}

impl<S> Levelled<S> {
    /// Wraps `inner`; each of its requests runs at `classify(request)`.
    pub fn new(
        inner: S,
        classify: impl Fn(&Request<Incoming>) -> Level + Send + Sync + 'static,
    ) -> Levelled<S> {
        Levelled::shared(inner, Arc::new(classify))
    }

    pub(super) fn shared(inner: S, classify: Classify) -> Levelled<S> {
        Levelled { inner, classify }
    }
}

impl<S, B> Service<Request<Incoming>> for Levelled<S>
where
    S: Service<Request<Incoming>, Response = Response<B>>,
{
    type Response = Response<LevelBody<B>>;
    type Error = S::Error;
    type Future = LevelFuture<S::Future>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let level = (self.classify)(&request);
        let restores = request.version() < Version::HTTP_2;
        LevelFuture {
            inner: self.inner.call(request),
            level: Some(RequestLevel::new(level, restores)),
        }
    }
}

impl<S: Clone> Clone for Levelled<S> {
    fn clone(&self) -> Self {
        Levelled {
            inner: self.inner.clone(),
            classify: self.classify.clone(),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Levelled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Levelled").field(&self.inner).finish()
    }
}

/// A guard that gives a coroutine its former level back when dropped.
struct RestoreLevel {
    id: CoroutineId,
    level: Level,
}

impl Drop for RestoreLevel {
    fn drop(&mut self) {
        if crate::get_cid() == Some(self.id)
            && let Some(level) = crate::current_level()
        {
            receiving::end_request();
            reply::set_answered(self.id, level);
        }
        // The coroutine may have ended.
        let _ = crate::reprio(self.id, self.level);
    }
}

/// The level of a request. It moves the coroutine that polls the request to this level, and
/// restores the coroutine's level when the `RequestLevel` is dropped. It is a part of the future of
/// the request, and then of the body of the response.
pub struct RequestLevel {
    target: Option<Level>,
    restores: bool,
    has_begun: bool,
    restore: Option<RestoreLevel>,
}

impl RequestLevel {
    /// Creates the level of a request at `level`. With `restores`, the coroutine returns to its
    /// former level when the response ends.
    pub fn new(level: Level, restores: bool) -> RequestLevel {
        RequestLevel {
            target: Some(level),
            restores,
            has_begun: false,
            restore: None,
        }
    }

    /// Creates the level of a request that is served at the level of receiving, as a part of
    /// receiving, within its [`Allowance`](super::Allowance). With `restores`, the coroutine
    /// returns to the level of receiving when the response ends, if it was moved meanwhile.
    pub fn for_receiving(restores: bool) -> RequestLevel {
        RequestLevel {
            target: None,
            ..RequestLevel::new(Level::default(), restores)
        }
    }

    /// Moves the calling coroutine to the level of the request. Returns ready once the request may
    /// begin, and at every later call.
    pub fn poll_begin(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(to) = self.target.take()
            && let (Some(id), Some(from)) = (crate::get_cid(), crate::current_level())
        {
            if self.restores {
                // This is needed even without a change of level, because an operator may change the
                // level of the request later.
                let level = receiving::return_level(from);
                self.restore = Some(RestoreLevel { id, level });
            }
            if from != to {
                // A running coroutine is alive.
                let _ = crate::reprio(id, to);
            }
            receiving::begin_request(to <= from);
            if to > from {
                // The request queues behind earlier requests of its level.
                self.has_begun = true;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        if !self.has_begun {
            if self.restores
                && self.restore.is_none()
                && let (Some(id), Some(level)) = (crate::get_cid(), crate::current_level())
            {
                self.restore = Some(RestoreLevel { id, level });
            }
            // Pipelined requests must not make one long poll.
            ready!(coop::poll_piece(cx));
            self.has_begun = true;
        }
        Poll::Ready(())
    }
}

impl fmt::Debug for RequestLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLevel").finish_non_exhaustive()
    }
}

pin_project! {
    /// The future of a request of [`Levelled`]. It moves the coroutine that first polls it to the
    /// level of the request.
    pub struct LevelFuture<F> {
        #[pin]
        inner: F,
        level: Option<RequestLevel>,
    }
}

impl<F, B, E> Future for LevelFuture<F>
where
    F: Future<Output = Result<Response<B>, E>>,
{
    type Output = Result<Response<LevelBody<B>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Some(level) = this.level {
            ready!(level.poll_begin(cx));
        }
        let response = ready!(this.inner.poll(cx))?;
        let level = this.level.take();
        Poll::Ready(Ok(response.map(|inner| LevelBody {
            inner,
            has_begun: false,
            level,
        })))
    }
}

impl<F> fmt::Debug for LevelFuture<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelFuture").finish_non_exhaustive()
    }
}

pin_project! {
    /// The body of a response of [`Levelled`]; its drop ends the level of the request.
    pub struct LevelBody<B> {
        #[pin]
        inner: B,
        has_begun: bool,
        level: Option<RequestLevel>,
    }
}

impl<B: Body> Body for LevelBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        // Giving way here lets the next piece begin early in a poll, so that its producer is seldom
        // suspended while it holds locks. The first piece is sent with the head, without giving
        // way.
        if *this.has_begun {
            ready!(coop::poll_piece(cx));
        }
        let frame = ready!(this.inner.poll_frame(cx));
        *this.has_begun = true;
        Poll::Ready(frame)
    }

    #[inline]
    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    #[inline]
    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl<B> fmt::Debug for LevelBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelBody").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::poll_fn;

    use super::*;
    use crate::Runtime;

    struct Frames;

    impl Body for Frames {
        type Data = &'static [u8];
        type Error = Infallible;

        fn poll_frame(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<&'static [u8]>, Infallible>>> {
            Poll::Ready(Some(Ok(Frame::data(b"frame"))))
        }
    }

    #[test]
    fn a_body_checks_before_each_frame_but_the_first_whether_to_yield() {
        let runtime = Runtime::builder().vcpus(1).build().unwrap();
        let body = async {
            let mut body = LevelBody {
                inner: Frames,
                has_begun: false,
                level: None,
            };
            let urgent = crate::spawn(async {}, Level::at::<0>());
            let polls = poll_fn(|cx| {
                let mut body = Pin::new(&mut body);
                Poll::Ready([0; 2].map(|_| body.as_mut().poll_frame(cx).is_ready()))
            });
            // The head of the response goes with the first frame, even if other work waits.
            assert_eq!(polls.await, [true, false]);
            urgent.await.unwrap();
            assert!(
                poll_fn(|cx| Pin::new(&mut body).poll_frame(cx))
                    .await
                    .is_some()
            );
        };
        runtime.block_on(async { crate::spawn(body, Level::at::<8>()).await.unwrap() });
    }
}
