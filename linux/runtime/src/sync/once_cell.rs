//! A value that is made once, by the first that needs it.
//!
//! Invariant: `value` is written by the holder of `making`, before `made` is set, and never
//! again while the cell is shared. So a thread that sees `made` may read it.

use std::cell::UnsafeCell;
use std::convert::Infallible;
use std::error::Error;
use std::fmt;
use std::future::Future;

use super::Mutex;
use super::atomic::{AtomicU64, Ordering, const_fn};

/// A cell that is filled once, also by an `async` function.
///
/// One coroutine makes the value; the others wait, and *lend it their level* meanwhile: what
/// is urgent does not wait for what is between. If it fails, panics or is cancelled, the most
/// urgent of those that wait tries next.
///
/// ```
/// use upshift::sync::OnceCell;
///
/// static ANSWER: OnceCell<u32> = OnceCell::const_new();
///
/// upshift::Runtime::new()?.block_on(async {
///     assert_eq!(*ANSWER.get_or_init(async || 42).await, 42);
///     assert_eq!(ANSWER.get(), Some(&42));
/// });
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct OnceCell<T> {
    made: AtomicU64,
    making: Mutex<()>,
    value: UnsafeCell<Option<T>>,
}

// SAFETY: the value is moved in by one thread, and then only looked at or moved out.
unsafe impl<T: Send> Send for OnceCell<T> {}
// SAFETY: as above; it may be moved in by one thread and dropped by another.
unsafe impl<T: Send + Sync> Sync for OnceCell<T> {}
impl<T: std::panic::UnwindSafe> std::panic::UnwindSafe for OnceCell<T> {}
impl<T: std::panic::RefUnwindSafe + std::panic::UnwindSafe> std::panic::RefUnwindSafe
    for OnceCell<T>
{
}

impl<T> OnceCell<T> {
    const_fn! {
        /// Empty; in a `static` too.
        #[must_use]
        pub const fn const_new() -> OnceCell<T> {
            OnceCell {
                made: AtomicU64::new(0),
                making: Mutex::new(()),
                value: UnsafeCell::new(None),
            }
        }
    }

    const_fn! {
        /// With this value; in a `static` too.
        #[must_use]
        pub const fn const_new_with(value: T) -> OnceCell<T> {
            OnceCell {
                made: AtomicU64::new(1),
                making: Mutex::new(()),
                value: UnsafeCell::new(Some(value)),
            }
        }
    }

    /// Empty.
    #[must_use]
    pub fn new() -> OnceCell<T> {
        OnceCell::const_new()
    }

    /// With this value, if there is one.
    #[must_use]
    pub fn new_with(value: Option<T>) -> OnceCell<T> {
        value.map_or_else(OnceCell::new, OnceCell::const_new_with)
    }

    /// Is there a value?
    #[must_use]
    pub fn initialized(&self) -> bool {
        self.made.load(Ordering::Acquire) != 0
    }

    /// The value, if there is one.
    #[must_use]
    pub fn get(&self) -> Option<&T> {
        if !self.initialized() {
            return None;
        }
        // SAFETY: written before it was said to be, and not since.
        unsafe { &*self.value.get() }.as_ref()
    }

    /// The value, if there is one.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.value.get_mut().as_mut()
    }

    /// Takes the value out.
    #[must_use]
    pub fn into_inner(self) -> Option<T> {
        self.value.into_inner()
    }

    /// Takes the value out and leaves the cell empty.
    pub fn take(&mut self) -> Option<T> {
        std::mem::take(self).into_inner()
    }

    /// Puts a value in.
    ///
    /// # Errors
    /// [`SetError`] with it: there is one, or one is being made.
    pub fn set(&self, value: T) -> Result<(), SetError<T>> {
        let making = self.making.try_lock();
        if self.initialized() {
            return Err(SetError::AlreadyInitializedError(value));
        }
        if making.is_err() {
            return Err(SetError::InitializingError(value));
        }
        self.fill(value);
        Ok(())
    }

    /// The caller holds `making`, and the cell is empty.
    fn fill(&self, value: T) -> &T {
        // SAFETY: we are the only one that makes the value, and no reader looks before `made`.
        let value = unsafe { (*self.value.get()).insert(value) };
        self.made.store(1, Ordering::Release);
        value
    }

    /// The value, which `make` makes if there is none.
    pub async fn get_or_init<F, Fut>(&self, make: F) -> &T
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = T>,
    {
        let made = self.get_or_try_init(|| async { Ok::<T, Infallible>(make().await) });
        match made.await {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// The value, which `make` makes if there is none.
    ///
    /// # Errors
    /// What `make` fails with; the cell stays empty.
    pub async fn get_or_try_init<E, F, Fut>(&self, make: F) -> Result<&T, E>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        super::proceed().await;
        if let Some(value) = self.get() {
            return Ok(value);
        }
        let _making = self.making.lock().await;
        if let Some(value) = self.get() {
            return Ok(value);
        }
        Ok(self.fill(make().await?))
    }
}

/// What a cell has whose value may be missing: `Default`, `From` the value, and those that look at the value.
macro_rules! cell_traits {
    ($cell:ident) => {
        impl<T> Default for $cell<T> {
            fn default() -> $cell<T> {
                $cell::new()
            }
        }

        impl<T> From<T> for $cell<T> {
            fn from(value: T) -> $cell<T> {
                $cell::const_new_with(value)
            }
        }

        impl<T: Clone> Clone for $cell<T> {
            fn clone(&self) -> $cell<T> {
                $cell::new_with(self.get().cloned())
            }
        }

        impl<T: PartialEq> PartialEq for $cell<T> {
            fn eq(&self, other: &$cell<T>) -> bool {
                self.get() == other.get()
            }
        }

        impl<T: Eq> Eq for $cell<T> {}

        impl<T: fmt::Debug> fmt::Debug for $cell<T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($cell))
                    .field("value", &self.get())
                    .finish()
            }
        }
    };
}
pub(super) use cell_traits;

cell_traits!(OnceCell);

/// Why [`OnceCell::set`] failed; the value is inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetError<T> {
    /// There is a value already.
    AlreadyInitializedError(T),
    /// One is being made.
    InitializingError(T),
}

impl<T> SetError<T> {
    /// Is there a value already?
    #[must_use]
    pub fn is_already_init_err(&self) -> bool {
        matches!(self, SetError::AlreadyInitializedError(_))
    }

    /// Is one being made?
    #[must_use]
    pub fn is_initializing_err(&self) -> bool {
        matches!(self, SetError::InitializingError(_))
    }
}

impl<T> fmt::Display for SetError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetError::AlreadyInitializedError(_) => "the cell has a value: use `get`",
            SetError::InitializingError(_) => "a value is being made: wait with `get_or_init`",
        })
    }
}

impl<T: fmt::Debug> Error for SetError<T> {}
