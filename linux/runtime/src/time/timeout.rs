//! A future with a deadline.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::Instant;
use super::sleep::{Sleep, sleep, sleep_until};

/// Limits a future to a duration, which begins when this function is called.
///
/// The future is polled before the deadline is checked, and a future that is ready at its
/// first poll sets no timer. When the time is up the output is [`Elapsed`]; the future is
/// dropped together with the [`Timeout`].
///
/// # Cancellation safety
/// The [`Timeout`] is as cancel safe as `future`, which is dropped with it. To keep the future,
/// pass a reference: `timeout(duration, &mut future)`.
///
/// ```
/// use std::time::Duration;
/// use upshift::time::timeout;
///
/// upshift::Runtime::new()?.block_on(async {
///     assert_eq!(timeout(Duration::from_secs(1), async { 7 }).await, Ok(7));
///     let never = std::future::pending::<()>();
///     assert!(timeout(Duration::from_millis(1), never).await.is_err());
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Panics where [`sleep`](super::sleep) panics, unless the future is ready at its first poll.
pub fn timeout<F: IntoFuture>(duration: Duration, future: F) -> Timeout<F::IntoFuture> {
    Timeout {
        future: future.into_future(),
        sleep: sleep(duration),
    }
}

/// Limits a future to an instant: [`timeout`] with a deadline.
///
/// ```
/// use std::time::{Duration, Instant};
///
/// upshift::Runtime::new()?.block_on(async {
///     let deadline = Instant::now() + Duration::from_millis(1);
///     let never = std::future::pending::<()>();
///     assert!(upshift::time::timeout_at(deadline, never).await.is_err());
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Panics
/// Like [`timeout`].
pub fn timeout_at<F: IntoFuture>(
    deadline: impl Into<Instant>,
    future: F,
) -> Timeout<F::IntoFuture> {
    Timeout {
        future: future.into_future(),
        sleep: sleep_until(deadline),
    }
}

/// The future of [`timeout`] and [`timeout_at`].
///
/// ```
/// use std::time::Duration;
/// use upshift::time::timeout;
///
/// let never = std::future::pending::<()>();
/// let limited = timeout(Duration::from_secs(1), never);
/// let _never = limited.into_inner();
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct Timeout<F> {
    future: F,
    sleep: Sleep,
}

impl<F> Timeout<F> {
    /// Returns a reference to the future inside.
    pub fn get_ref(&self) -> &F {
        &self.future
    }

    /// Returns a mutable reference to the future inside.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.future
    }

    /// Returns the future inside, without its deadline.
    ///
    /// ```
    /// use std::time::Duration;
    /// use upshift::time::timeout;
    ///
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let limited = timeout(Duration::from_secs(1), async { 7 });
    /// assert_eq!(limited.into_inner().await, 7); // Without the deadline.
    /// # });
    /// ```
    pub fn into_inner(self) -> F {
        self.future
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // SAFETY: `future` is pinned whenever the `Timeout` is: it is not moved out of a pinned
        // `Timeout` (`get_mut` and `into_inner` need an unpinned `Timeout`), there is no `Drop`,
        // and `Unpin` is derived from the fields. `sleep` is `Unpin`.
        let (future, sleep) = unsafe {
            let this = self.get_unchecked_mut();
            (Pin::new_unchecked(&mut this.future), &mut this.sleep)
        };
        if let Poll::Ready(output) = future.poll(cx) {
            return Poll::Ready(Ok(output));
        }
        // With `false` the deadline is checked even if this poll should give way to other
        // coroutines. Otherwise a future that uses up the poll's budget in every poll would prevent
        // the check.
        sleep.advance(cx, false).map(|()| Err(Elapsed(())))
    }
}

/// The error of [`timeout`] and [`timeout_at`]: the deadline passed first.
///
/// ```
/// use std::io;
/// use std::time::Duration;
/// use upshift::time::timeout;
///
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// let never = std::future::pending::<()>();
/// let elapsed = timeout(Duration::from_millis(1), never).await.unwrap_err();
/// assert_eq!(io::Error::from(elapsed).kind(), io::ErrorKind::TimedOut);
/// # });
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elapsed(());

impl fmt::Display for Elapsed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the deadline passed before the operation was done: retry or allow more time")
    }
}

impl std::error::Error for Elapsed {}

impl From<Elapsed> for io::Error {
    fn from(elapsed: Elapsed) -> io::Error {
        io::Error::new(io::ErrorKind::TimedOut, elapsed)
    }
}
