//! Gives each coroutine a `tracing` span, which is entered at each poll (feature `tracing`).
//!
//! The span has the name `coroutine`, the target `upshift::coroutine` and the level DEBUG. It is a
//! root span, with the fields `id`, `level` (kept up to date) and `location`. Without the feature
//! it costs nothing. With the feature it costs 40 bytes per coroutine, and, while no subscriber is
//! interested in the span, one load per spawn and one test per poll.

use std::panic::Location;

use upshift_core::Priority;

#[cfg(not(feature = "tracing"))]
#[inline(always)]
pub(crate) fn traced<F>(future: F, _: &'static Location<'static>, _: Priority) -> F {
    future
}

#[cfg(feature = "tracing")]
pub(crate) fn traced<F: Future>(
    future: F,
    location: &'static Location<'static>,
    priority: Priority,
) -> Traced<F> {
    use tracing::field::Empty;
    let level = match priority {
        Priority::At(level) => level,
        Priority::Inherit => crate::host::current_level().unwrap_or_default(),
    };
    let span = tracing::debug_span!(
        target: "upshift::coroutine",
        parent: None,
        "coroutine",
        id = Empty,
        // OpenTelemetry has no unsigned numbers.
        level = i64::from(level.get()),
        location = %location,
    );
    Traced {
        span,
        level: u8::MAX,
        future: std::mem::ManuallyDrop::new(future),
    }
}

#[cfg(feature = "tracing")]
pub(crate) use enabled::Traced;

#[cfg(feature = "tracing")]
mod enabled {
    use std::mem::ManuallyDrop;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use tracing::Span;

    use crate::host;

    /// A future in the span of its coroutine. The future is dropped in the span, too.
    pub(crate) struct Traced<F> {
        pub(super) span: Span,
        /// The level that the span shows; `u8::MAX` before the first poll.
        pub(super) level: u8,
        /// Pinned with the struct. Only the drop of the struct drops it.
        pub(super) future: ManuallyDrop<F>,
    }

    impl<F: Future> Future for Traced<F> {
        type Output = F::Output;

        #[inline]
        fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
            // SAFETY: nothing is moved out of the pinned `self` through this reference.
            let this = unsafe { self.get_unchecked_mut() };
            // SAFETY: the field is pinned structurally, because it is never moved, and is dropped
            // in place with `self`.
            let future = unsafe { Pin::new_unchecked(&mut *this.future) };
            if this.span.is_disabled() {
                return future.poll(cx);
            }
            let level = host::current_level().unwrap_or_default().get();
            if level != this.level {
                if this.level == u8::MAX
                    && let Some(id) = host::current_id()
                {
                    this.span.record("id", tracing::field::display(id));
                }
                this.level = level;
                this.span.record("level", i64::from(level));
            }
            let _entered = this.span.enter();
            future.poll(cx)
        }
    }

    impl<F> Drop for Traced<F> {
        fn drop(&mut self) {
            /// Drops the borrowed future, even if a subscriber panics first, because pinned memory
            /// must not be freed before the value in it has been dropped.
            struct DropGuard<'a, F>(&'a mut ManuallyDrop<F>);
            impl<F> Drop for DropGuard<'_, F> {
                fn drop(&mut self) {
                    // SAFETY: the future is dropped exactly once, because only the drop of the
                    // whole `Traced` reaches this.
                    unsafe { ManuallyDrop::drop(self.0) };
                }
            }
            let future = DropGuard(&mut self.future);
            let _entered = self.span.enter();
            drop(future);
        }
    }
}
