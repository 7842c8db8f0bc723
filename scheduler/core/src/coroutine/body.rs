//! The *body* of a coroutine is the allocation that holds the future and later its output. This
//! file has the functions that depend on their types.
//!
//! The body is freed when the output is taken or dropped. A reference that remains, such as a
//! waker, keeps only the control block alive, which is a [`Slot`] of the table.

use core::alloc::Layout;
use core::future::Future;
use core::mem::ManuallyDrop;
use core::pin::Pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};

use super::join_error::{JoinError, Payload};
use super::spawn_sites::SpawnSites;
use super::{Slot, catch_panic};
use crate::base::host::Host;
use crate::sync::AtomicPtr;
#[cfg(not(target_pointer_width = "64"))]
use crate::sync::AtomicU16;
use crate::sync::Ordering::Relaxed;

/// How a coroutine ended. Its output has been stored.
#[derive(Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Ended {
    /// The coroutine returned, or was cancelled.
    Normally,
    /// The poll or the destructor of the future panicked.
    Panicked,
}

/// The functions that depend on the type of the future. Each takes the address of a body of that
/// type. `poll` and `cancel` are called by the owner of the coroutine while the body holds the
/// future. After `cancel`, and after `poll` has returned `Some`, the body holds the output.
/// `take_output` or `drop_output` is then called once, by the owner of the output.
pub(crate) struct VTable<H: Host> {
    poll: unsafe fn(NonNull<()>, &mut Context<'_>) -> Option<Ended>,
    /// Drops the future and stores `JoinError::Cancelled` as the output.
    cancel: unsafe fn(NonNull<()>) -> Ended,
    /// Moves the output to the given address, and frees the body.
    take_output: unsafe fn(NonNull<()>, *mut ()),
    /// Drops the output, and frees the body.
    drop_output: unsafe fn(NonNull<()>),
    host: core::marker::PhantomData<fn() -> H>,
}

union Body<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

pub(crate) fn vtable_of<F: Future + 'static, H: Host>() -> &'static VTable<H> {
    const { &Body::<F>::vtable::<H>() }
}

/// Returns the future if there is no memory.
pub(crate) fn allocate<F: Future + 'static, H: Host>(future: F) -> Result<NonNull<()>, F> {
    // SAFETY: the layout is not empty, since it has room for a `JoinError`.
    let memory = unsafe { H::allocate(Layout::new::<Body<F>>()) }.cast::<Body<F>>();
    let Some(body) = NonNull::new(memory) else {
        return Err(future);
    };
    let future = ManuallyDrop::new(future);
    // SAFETY: the memory is freshly allocated for this type.
    unsafe { body.write(Body { future }) };
    Ok(body.cast())
}

/// # Safety
/// The body came from [`allocate`] with this type, and is not used elsewhere.
#[cold]
pub(crate) unsafe fn take_back<F: Future + 'static, H: Host>(body: NonNull<()>) -> F {
    let body = body.cast::<Body<F>>();
    // SAFETY: the body holds a future of this type and has no other user, by contract.
    unsafe {
        let future = ManuallyDrop::take(&mut (*body.as_ptr()).future);
        Body::<F>::free::<H>(body);
        future
    }
}

impl<F: Future + 'static> Body<F> {
    const fn vtable<H: Host>() -> VTable<H> {
        VTable {
            poll: Self::poll::<H>,
            cancel: Self::cancel::<H>,
            take_output: Self::take_output::<H>,
            drop_output: Self::drop_output::<H>,
            host: core::marker::PhantomData,
        }
    }

    unsafe fn poll<H: Host>(body: NonNull<()>, cx: &mut Context<'_>) -> Option<Ended> {
        let body = body.cast::<Body<F>>().as_ptr();
        let polled = H::catch(|| {
            // SAFETY: the caller is the only poller. The future never moves, because it stays in
            // the body until `finish` drops it.
            let future = unsafe { Pin::new_unchecked(&mut *(*body).future) };
            future.poll(cx)
        });
        let output = match polled {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(output)) => Ok(output),
            Err(panic) => Err(JoinError::Panicked(Payload::new(panic))),
        };
        // SAFETY: the caller owns the body, which still holds the future.
        Some(unsafe { Self::finish::<H>(body, output) })
    }

    unsafe fn cancel<H: Host>(body: NonNull<()>) -> Ended {
        // SAFETY: the caller owns the coroutine and has not polled it to its end, so the body holds
        // the future.
        unsafe { Self::finish::<H>(body.cast().as_ptr(), Err(JoinError::Cancelled)) }
    }

    /// Drops the future and stores the output. A destructor that panics replaces the output.
    ///
    /// # Safety
    /// The body holds the future, and the caller owns it.
    unsafe fn finish<H: Host>(body: *mut Body<F>, output: Result<F::Output, JoinError>) -> Ended {
        // SAFETY: the body holds the future, by contract, and it is dropped once, in place.
        let dropped = H::catch(|| unsafe { ManuallyDrop::drop(&mut (*body).future) });
        let output = match dropped {
            Ok(()) => output,
            Err(panic) => {
                catch_panic::<H>(|| drop(output));
                Err(JoinError::Panicked(Payload::new(panic)))
            }
        };
        let end = match output {
            Err(JoinError::Panicked(_)) => Ended::Panicked,
            _ => Ended::Normally,
        };
        // SAFETY: the caller owns the body, which is empty now.
        unsafe { (*body).output = ManuallyDrop::new(output) };
        end
    }

    unsafe fn take_output<H: Host>(body: NonNull<()>, to: *mut ()) {
        let body = body.cast::<Body<F>>();
        let to = to.cast::<Result<F::Output, JoinError>>();
        // SAFETY: the output is stored and taken once, and `to` has its type. Then the body is
        // empty, as `free` requires.
        unsafe {
            to.write(ManuallyDrop::take(&mut (*body.as_ptr()).output));
            Self::free::<H>(body);
        }
    }

    unsafe fn drop_output<H: Host>(body: NonNull<()>) {
        let body = body.cast::<Body<F>>();
        // SAFETY: the output is stored, and this drop is its last use.
        catch_panic::<H>(|| unsafe { ManuallyDrop::drop(&mut (*body.as_ptr()).output) });
        // SAFETY: the body is empty.
        unsafe { Self::free::<H>(body) };
    }

    /// # Safety
    /// The body came from [`allocate`], and its content has been moved out or dropped.
    unsafe fn free<H: Host>(body: NonNull<Body<F>>) {
        // SAFETY: the body was allocated with this layout, and is not used any more.
        unsafe { H::free(body.as_ptr().cast(), Layout::new::<Body<F>>()) };
    }
}

#[cfg(target_pointer_width = "64")]
const SITE_BITS: u32 = 16;

/// Address of the body, and number of its [spawn site](super::spawn_sites). Where addresses have 64
/// bits, one word contains both: the number replaces the upper 16 bits of the address, which only
/// repeat bit 47. (x86-64 and arm64 give longer addresses only to programs that request them; on
/// RISC-V, addresses are shorter.)
pub(super) struct BodyPtr {
    body: AtomicPtr<()>,
    #[cfg(not(target_pointer_width = "64"))]
    site: AtomicU16,
}

#[cfg(target_pointer_width = "64")]
impl BodyPtr {
    /// Returns `None` if the address is longer than 48 bits.
    #[inline]
    pub(super) fn new(body: NonNull<()>, site: u16) -> Option<BodyPtr> {
        let tagged = (body.as_ptr()).map_addr(|address| address << SITE_BITS | usize::from(site));
        let body_ptr = BodyPtr {
            body: AtomicPtr::new(tagged),
        };
        (untagged(tagged) == body.as_ptr()).then_some(body_ptr)
    }

    #[inline]
    fn parts(&self) -> (NonNull<()>, u16) {
        let tagged = self.body.load(Relaxed);
        // SAFETY: the word was made from an address that is not null.
        let body = unsafe { NonNull::new_unchecked(untagged(tagged)) };
        (body, tagged.addr() as u16)
    }
}

#[cfg(target_pointer_width = "64")]
#[inline]
fn untagged(tagged: *mut ()) -> *mut () {
    tagged.map_addr(|address| (address as isize >> SITE_BITS) as usize)
}

#[cfg(not(target_pointer_width = "64"))]
impl BodyPtr {
    pub(super) fn new(body: NonNull<()>, site: u16) -> Option<BodyPtr> {
        Some(BodyPtr {
            body: AtomicPtr::new(body.as_ptr()),
            site: AtomicU16::new(site),
        })
    }

    fn parts(&self) -> (NonNull<()>, u16) {
        // SAFETY: the address was not null when it was stored.
        let body = unsafe { NonNull::new_unchecked(self.body.load(Relaxed)) };
        (body, self.site.load(Relaxed))
    }
}

impl BodyPtr {
    #[cfg(loom)]
    pub(super) fn none() -> BodyPtr {
        BodyPtr {
            body: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// # Safety
/// Each function has the contract that [`VTable`] states for the function that it calls. `sites`
/// are the spawn sites of the coroutine's domain.
impl<H: Host> Slot<H> {
    #[inline]
    fn body(&self, sites: &SpawnSites<H>) -> (NonNull<()>, &'static VTable<H>) {
        let (body, site) = self.body_ptr.parts();
        // SAFETY: the site's number came from these sites.
        (body, unsafe { sites.get(site) }.vtable)
    }

    pub(crate) fn spawned_at(
        &self,
        sites: &SpawnSites<H>,
    ) -> &'static core::panic::Location<'static> {
        let (_, site) = self.body_ptr.parts();
        // SAFETY: the site's number came from these sites.
        unsafe { sites.get(site) }.location
    }

    #[inline]
    pub(crate) unsafe fn poll(&self, sites: &SpawnSites<H>, cx: &mut Context<'_>) -> Option<Ended> {
        let (body, vtable) = self.body(sites);
        // SAFETY: the contract is the caller's.
        unsafe { (vtable.poll)(body, cx) }
    }

    pub(crate) unsafe fn cancel(&self, sites: &SpawnSites<H>) -> Ended {
        let (body, vtable) = self.body(sites);
        // SAFETY: the contract is the caller's.
        unsafe { (vtable.cancel)(body) }
    }

    #[inline]
    pub(crate) unsafe fn take_output(&self, sites: &SpawnSites<H>, to: *mut ()) {
        let (body, vtable) = self.body(sites);
        // SAFETY: the contract is the caller's.
        unsafe { (vtable.take_output)(body, to) }
    }

    pub(crate) unsafe fn drop_output(&self, sites: &SpawnSites<H>) {
        let (body, vtable) = self.body(sites);
        // SAFETY: the contract is the caller's.
        unsafe { (vtable.drop_output)(body) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_body_pointer_holds_an_address_and_a_number() {
        let mut word = 0u64;
        let body = NonNull::from(&mut word).cast::<()>();
        for site in [0, 1, 0x7fff, 0x8000, u16::MAX] {
            let body_ptr = BodyPtr::new(body, site).unwrap();
            assert_eq!(body_ptr.parts(), (body, site));
        }
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn an_address_of_the_upper_half_is_packed_and_a_longer_address_is_refused() {
        let pointer =
            |address| NonNull::new(core::ptr::without_provenance_mut::<()>(address)).unwrap();
        let upper = pointer(0xffff_ffc0_8020_0040);
        assert_eq!(BodyPtr::new(upper, 9).unwrap().parts(), (upper, 9));
        assert!(BodyPtr::new(pointer(1 << 48), 9).is_none());
        assert!(BodyPtr::new(pointer(1 << 47), 9).is_none());
    }
}
