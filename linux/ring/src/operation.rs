//! What an operation is, and the table through which the ring handles operations whose type it has forgotten.

use io_uring::squeue::Entry;
use std::marker::PhantomData;

/// Bytes of an operation stored in its slot; larger ones are boxed.
pub(crate) const INLINE: usize = 64;

/// One request to the kernel, with everything it points to.
///
/// The ring moves the operation to its place (a slot, or a box if it is larger than 64 bytes), calls
/// [`entry`](Self::entry) there once, and leaves it alone until the terminal completion. Then it is moved out, and
/// [`complete`](Self::complete) is called with the kernel's result: by the handle, on the thread that polls it, or on the
/// ring's thread if the handle is gone; so whatever a result owns (a descriptor) is released in either case.
///
/// # Safety
///
/// Every pointer in the entry must stay valid for what the kernel does with it while the value stays at its address, until
/// the terminal completion. The value must own (not borrow) what the pointers and descriptors refer to. The flags of the
/// entry must not make the kernel skip the completion, and the entry must complete once.
/// `user_data` is set by the ring.
pub unsafe trait Operation: Sized + Send + 'static {
    /// What the handle resolves to.
    type Output;

    /// May what the operation owns, or its output, run code of users when it is dropped? Then a ring that
    /// [knows its runtime's wakers](crate::Ring::set_own) leaves that to the runtime.
    const FOREIGN: bool = true;

    /// Bytes that a thread of the kernel copies for it, competing with the ring's thread for its CPU: of writes to the page cache. While something more
    /// urgent is in flight, few of them are handed over at a time. Never more than 2³².
    #[inline]
    fn copies(&self) -> u32 {
        0
    }

    /// Describes the request. Called when the value has reached its place. Must not panic.
    fn entry(&mut self) -> Entry;

    /// Turns the kernel's result (negative: an errno) into the output.
    fn complete(self, result: i32, flags: u32) -> Self::Output;
}

/// The functions of an operation of forgotten type. Each takes the payload of the slot.
pub(crate) struct Table {
    pub(crate) entry: unsafe fn(*mut u8) -> Entry,
    pub(crate) dispose: unsafe fn(*mut u8, i32, u32),
    /// As `dispose`, which is left to the drop of what is returned.
    pub(crate) take: unsafe fn(*mut u8, i32, u32) -> Box<dyn Send>,
    pub(crate) foreign: bool,
}

impl Table {
    /// For slots without a payload.
    pub(crate) const NONE: &'static Table = &Table {
        entry: |_| io_uring::opcode::Nop::new().build(),
        dispose: |_, _, _| {},
        take: |_, _, _| Box::new(()),
        foreign: false,
    };
}

/// An operation that is complete, and is disposed of by being dropped.
struct Complete<T: Operation> {
    operation: Option<T>,
    result: i32,
    flags: u32,
}

impl<T: Operation> Drop for Complete<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            drop(operation.complete(self.result, self.flags));
        }
    }
}

/// How a value of type `T` lies in a payload.
pub(crate) struct Stored<T>(PhantomData<T>);

impl<T: Operation> Stored<T> {
    const INLINE: bool = size_of::<T>() <= INLINE && align_of::<T>() <= INLINE;

    pub(crate) const TABLE: &'static Table = &Table {
        entry: |payload| {
            // SAFETY: the ring calls this only while the payload holds a `T`.
            unsafe { (*Self::place(payload)).entry() }
        },
        dispose: |payload, result, flags| {
            // SAFETY: the ring calls this once, after the terminal completion of the `T` in the payload.
            drop(unsafe { Self::take(payload) }.complete(result, flags));
        },
        take: |payload, result, flags| {
            Box::new(Complete {
                // SAFETY: as above.
                operation: Some(unsafe { Self::take(payload) }),
                result,
                flags,
            })
        },
        foreign: T::FOREIGN,
    };

    /// # Safety
    /// `payload` points to a free payload.
    #[inline]
    pub(crate) unsafe fn put(payload: *mut u8, value: T) {
        // SAFETY: INLINE says that the value fits; a pointer always does.
        unsafe {
            if Self::INLINE {
                payload.cast::<T>().write(value);
            } else {
                payload
                    .cast::<*mut T>()
                    .write(Box::into_raw(Box::new(value)));
            }
        }
    }

    /// # Safety
    /// `payload` holds a `T` put there by [`put`](Self::put).
    #[inline]
    pub(crate) unsafe fn place(payload: *mut u8) -> *mut T {
        if Self::INLINE {
            payload.cast()
        } else {
            // SAFETY: `put` stored a pointer.
            unsafe { payload.cast::<*mut T>().read() }
        }
    }

    /// # Safety
    /// As for [`place`](Self::place); the payload is free afterwards.
    #[inline]
    pub(crate) unsafe fn take(payload: *mut u8) -> T {
        // SAFETY: forwarded.
        unsafe {
            if Self::INLINE {
                payload.cast::<T>().read()
            } else {
                *Box::from_raw(payload.cast::<*mut T>().read())
            }
        }
    }
}
