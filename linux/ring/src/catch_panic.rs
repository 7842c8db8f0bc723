//! Catches panics of user code, so that the ring can continue.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs user code and contains its panic, so that all other work continues. Returns `None` if the
/// code panicked; the panic hook has reported the panic by then.
///
/// The destructor of a panic's payload is user code, too. If that destructor panics, the payload
/// of this second panic is leaked, so that nothing unwinds out of this function.
///
/// ```
/// assert_eq!(upshift_ring::catch_panic(|| 7), Some(7));
/// assert_eq!(upshift_ring::catch_panic(|| panic!("reported, and contained")), None::<()>);
/// ```
#[inline]
pub fn catch_panic<R>(code: impl FnOnce() -> R) -> Option<R> {
    catch_unwind(AssertUnwindSafe(code)).map_err(discard).ok()
}

#[cold]
fn discard(payload: Box<dyn std::any::Any + Send>) {
    if let Err(second) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(second);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct Bomb;

    impl Drop for Bomb {
        fn drop(&mut self) {
            std::panic::panic_any(Bomb);
        }
    }

    #[test]
    fn a_payload_whose_destructor_panics_is_contained() {
        assert!(catch_panic(|| std::panic::panic_any(Bomb)).is_none());
        assert!(catch_panic(|| drop(Bomb)).is_none());
    }
}
