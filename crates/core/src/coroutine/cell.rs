//! The allocation of a coroutine: its [`Header`] and its future, later the output; and the calls that know the future's type.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::panic::Location;
use core::pin::Pin;
use core::ptr::{NonNull, null_mut};
use core::task::{Context, Poll};

use super::{Header, Kind, PINNED, State, quietly};
use crate::host::Host;
use crate::join::{JoinError, Payload};
use crate::level::Level;
use crate::loans::Loans;
use crate::sync::{AtomicPtr, AtomicU8, AtomicU64};
use crate::table::Slot;
use crate::vcpu::Vcpu;

/// How a coroutine came to its end: its output is in place.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Ended {
    /// It returned, or was cancelled.
    Quietly,
    /// Its poll panicked, or the destructor of its future.
    Panicked,
}

/// What the type of the future decides.
pub(crate) struct VTable<H: Host> {
    /// Polls; `None` when it is pending.
    poll: unsafe fn(NonNull<Header<H>>, &mut Context<'_>) -> Option<Ended>,
    /// Drops the future and puts `JoinError::Cancelled` in place.
    cancel: unsafe fn(NonNull<Header<H>>) -> Ended,
    /// Moves the output to the address given.
    take_output: unsafe fn(NonNull<Header<H>>, *mut ()),
    /// Drops the output.
    drop_output: unsafe fn(NonNull<Header<H>>),
    /// Frees the memory.
    free: unsafe fn(NonNull<Header<H>>),
}

#[repr(C)]
struct Cell<F: Future, H: Host> {
    header: Header<H>,
    body: UnsafeCell<Body<F>>,
}

union Body<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

impl<F: Future + 'static, H: Host> Cell<F, H> {
    const VTABLE: VTable<H> = VTable {
        poll: Self::poll,
        cancel: Self::cancel,
        take_output: Self::take_output,
        drop_output: Self::drop_output,
        free: Self::free,
    };

    fn body(header: NonNull<Header<H>>) -> *mut Body<F> {
        let cell = header.cast::<Cell<F, H>>().as_ptr();
        // SAFETY: the header is the first field of a cell of this type, as the
        // vtable it carries says.
        unsafe { (*cell).body.get() }
    }

    unsafe fn poll(header: NonNull<Header<H>>, cx: &mut Context<'_>) -> Option<Ended> {
        let body = Self::body(header);
        let polled = H::catch(|| {
            // SAFETY: the caller is the only poller, and the future is there
            // until this function has returned its end. It never moves.
            let future = unsafe { Pin::new_unchecked(&mut *(*body).future) };
            future.poll(cx)
        });
        let output = match polled {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(JoinError::Panicked(Payload::new(panic))),
        };
        // SAFETY: as above; after this the future is not used any more.
        Some(unsafe { Self::finish(body, output) })
    }

    unsafe fn cancel(header: NonNull<Header<H>>) -> Ended {
        // SAFETY: the caller owns the coroutine and has not polled it to its end.
        unsafe { Self::finish(Self::body(header), Err(JoinError::Cancelled)) }
    }

    /// Drops the future and stores the output. A destructor that panics
    /// replaces the output.
    ///
    /// # Safety
    /// The body holds the future, and the caller owns it.
    unsafe fn finish(body: *mut Body<F>, output: Result<F::Output, JoinError>) -> Ended {
        // SAFETY: the future is dropped once, in place.
        let dropped = H::catch(|| unsafe { ManuallyDrop::drop(&mut (*body).future) });
        let output = match dropped {
            Ok(()) => output,
            Err(panic) => {
                quietly::<H>(|| drop(output));
                Err(JoinError::Panicked(Payload::new(panic)))
            }
        };
        let end = match output {
            Err(JoinError::Panicked(_)) => Ended::Panicked,
            _ => Ended::Quietly,
        };
        // SAFETY: the body is the caller's, and empty now.
        unsafe { (*body).output = ManuallyDrop::new(output) };
        end
    }

    unsafe fn take_output(header: NonNull<Header<H>>, to: *mut ()) {
        let to = to.cast::<Result<F::Output, JoinError>>();
        // SAFETY: the output is in place, taken once, and `to` has its type.
        unsafe { to.write(ManuallyDrop::take(&mut (*Self::body(header)).output)) };
    }

    unsafe fn drop_output(header: NonNull<Header<H>>) {
        let body = Self::body(header);
        // SAFETY: the output is in place, and this is its only use.
        quietly::<H>(|| unsafe { ManuallyDrop::drop(&mut (*body).output) });
    }

    unsafe fn free(header: NonNull<Header<H>>) {
        // SAFETY: allocated by `new` with this layout; header and body have
        // nothing left that needs dropping.
        unsafe { H::free(header.as_ptr().cast(), Layout::new::<Self>()) };
    }
}

/// How a new coroutine starts.
pub(crate) struct Birth<H: Host> {
    pub(crate) level: Level,
    pub(crate) kind: Kind,
    pub(crate) pinned: bool,
    pub(crate) vcpu: NonNull<Vcpu<H>>,
    pub(crate) location: &'static Location<'static>,
}

/// Allocates a control block around `future`, or gives the future back.
pub(crate) fn allocate<F: Future + 'static, H: Host>(
    future: F,
    slot: NonNull<Slot<H>>,
    birth: &Birth<H>,
) -> Result<NonNull<Header<H>>, F> {
    // SAFETY: the layout is not empty.
    let memory = unsafe { H::allocate(Layout::new::<Cell<F, H>>()) }.cast::<Cell<F, H>>();
    let Some(cell) = NonNull::new(memory) else {
        return Err(future);
    };
    let header = Header {
        next: AtomicPtr::new(null_mut()),
        prev: AtomicPtr::new(null_mut()),
        vtable: const { &Cell::<F, H>::VTABLE },
        slot,
        vcpu: AtomicPtr::new(birth.vcpu.as_ptr()),
        waiter: AtomicPtr::new(null_mut()),
        ready_at: AtomicU64::new(0),
        base: AtomicU8::new(birth.level.get()),
        join_boost: AtomicU8::new(Header::<H>::NO_BOOST),
        loans: Loans::new(),
        level: AtomicU8::new(birth.level.get()),
        queued: AtomicU8::new(Header::<H>::NOT_QUEUED),
        state: AtomicU8::new(State::Created as u8),
        traits: AtomicU8::new(birth.kind as u8 | if birth.pinned { PINNED } else { 0 }),
        location: birth.location,
    };
    // SAFETY: freshly allocated for this type.
    unsafe {
        cell.write(Cell {
            header,
            body: UnsafeCell::new(Body {
                future: ManuallyDrop::new(future),
            }),
        });
    }
    Ok(cell.cast())
}

/// The calls through the vtable.
///
/// # Safety
/// Of each: as the field of the vtable says.
impl<H: Host> Header<H> {
    pub(crate) unsafe fn poll(this: NonNull<Self>, cx: &mut Context<'_>) -> Option<Ended> {
        // SAFETY: passed on.
        unsafe { (this.as_ref().vtable.poll)(this, cx) }
    }

    pub(crate) unsafe fn cancel(this: NonNull<Self>) -> Ended {
        // SAFETY: passed on.
        unsafe { (this.as_ref().vtable.cancel)(this) }
    }

    pub(crate) unsafe fn take_output(this: NonNull<Self>, to: *mut ()) {
        // SAFETY: passed on.
        unsafe { (this.as_ref().vtable.take_output)(this, to) }
    }

    pub(crate) unsafe fn drop_output(this: NonNull<Self>) {
        // SAFETY: passed on.
        unsafe { (this.as_ref().vtable.drop_output)(this) }
    }

    pub(crate) unsafe fn free(this: NonNull<Self>) {
        // SAFETY: passed on.
        unsafe { (this.as_ref().vtable.free)(this) }
    }
}
