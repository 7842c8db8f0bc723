//! The allocation of a future, later of its output; and the calls that know its type.
//!
//! It is made with the coroutine and freed when nothing in it is wanted any more: when its output is taken or dropped. Who still holds a
//! reference then, a waker for one, keeps the control block, which is a [`Slot`] of the table, and nothing else.

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
    poll: unsafe fn(NonNull<()>, &mut Context<'_>) -> Option<Ended>,
    /// Drops the future and puts `JoinError::Cancelled` in place.
    cancel: unsafe fn(NonNull<()>) -> Ended,
    /// Moves the output to the address given, and frees the body.
    take_output: unsafe fn(NonNull<()>, *mut ()),
    /// Drops the output, and frees the body.
    drop_output: unsafe fn(NonNull<()>),
    host: core::marker::PhantomData<fn() -> H>,
}

union Body<F: Future> {
    future: ManuallyDrop<F>,
    output: ManuallyDrop<Result<F::Output, JoinError>>,
}

/// The calls for futures of one type.
pub(crate) fn vtable_of<F: Future + 'static, H: Host>() -> &'static VTable<H> {
    const { &Body::<F>::vtable::<H>() }
}

/// Moves a future to an allocation of its own, or gives it back.
pub(crate) fn allocate<F: Future + 'static, H: Host>(future: F) -> Result<NonNull<()>, F> {
    // SAFETY: the layout is not empty: there is room for a `JoinError`.
    let memory = unsafe { H::allocate(Layout::new::<Body<F>>()) }.cast::<Body<F>>();
    let Some(body) = NonNull::new(memory) else {
        return Err(future);
    };
    let future = ManuallyDrop::new(future);
    // SAFETY: freshly allocated for this type.
    unsafe { body.write(Body { future }) };
    Ok(body.cast())
}

/// Takes the future back, and frees its body.
///
/// # Safety
/// The body is of [`allocate`], for this type, and nothing else knows of it.
#[cold]
pub(crate) unsafe fn take_back<F: Future + 'static, H: Host>(body: NonNull<()>) -> F {
    let body = body.cast::<Body<F>>();
    // SAFETY: as the caller says.
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
        Some(unsafe { Self::finish::<H>(body, output) })
    }

    unsafe fn cancel<H: Host>(body: NonNull<()>) -> Ended {
        // SAFETY: the caller owns the coroutine and has not polled it to its end.
        unsafe { Self::finish::<H>(body.cast().as_ptr(), Err(JoinError::Cancelled)) }
    }

    /// Drops the future and stores the output. A destructor that panics
    /// replaces the output.
    ///
    /// # Safety
    /// The body holds the future, and the caller owns it.
    unsafe fn finish<H: Host>(body: *mut Body<F>, output: Result<F::Output, JoinError>) -> Ended {
        // SAFETY: the future is dropped once, in place.
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
            _ => Ended::Quietly,
        };
        // SAFETY: the body is the caller's, and empty now.
        unsafe { (*body).output = ManuallyDrop::new(output) };
        end
    }

    unsafe fn take_output<H: Host>(body: NonNull<()>, to: *mut ()) {
        let body = body.cast::<Body<F>>();
        let to = to.cast::<Result<F::Output, JoinError>>();
        // SAFETY: the output is in place, taken once, and `to` has its type; then the body is empty.
        unsafe {
            to.write(ManuallyDrop::take(&mut (*body.as_ptr()).output));
            Self::free::<H>(body);
        }
    }

    unsafe fn drop_output<H: Host>(body: NonNull<()>) {
        let body = body.cast::<Body<F>>();
        // SAFETY: the output is in place, and this is its only use.
        catch_panic::<H>(|| unsafe { ManuallyDrop::drop(&mut (*body.as_ptr()).output) });
        // SAFETY: the body is empty.
        unsafe { Self::free::<H>(body) };
    }

    /// # Safety
    /// The body is of [`allocate`], and has nothing left that needs dropping.
    unsafe fn free<H: Host>(body: NonNull<Body<F>>) {
        // SAFETY: allocated with this layout.
        unsafe { H::free(body.as_ptr().cast(), Layout::new::<Body<F>>()) };
    }
}

/// Bits of a site's number.
#[cfg(target_pointer_width = "64")]
const SITE: u32 = 16;

/// Address of the body and number of its [site](super::spawn_sites), in one word where addresses
/// have 64 bits: the upper 16 repeat the highest of the others. (x86-64 and arm64 give out longer
/// ones only to programs that ask for them; RISC-V's are shorter.)
pub(super) struct Place {
    body: AtomicPtr<()>,
    #[cfg(not(target_pointer_width = "64"))]
    site: AtomicU16,
}

#[cfg(target_pointer_width = "64")]
impl Place {
    /// `None`: the address is longer.
    #[inline]
    pub(super) fn new(body: NonNull<()>, site: u16) -> Option<Place> {
        let tagged = (body.as_ptr()).map_addr(|address| address << SITE | usize::from(site));
        let place = Place {
            body: AtomicPtr::new(tagged),
        };
        (untagged(tagged) == body.as_ptr()).then_some(place)
    }

    /// Both.
    #[inline]
    fn parts(&self) -> (NonNull<()>, u16) {
        let tagged = self.body.load(Relaxed);
        // SAFETY: made of one that is not null.
        let body = unsafe { NonNull::new_unchecked(untagged(tagged)) };
        (body, tagged.addr() as u16)
    }
}

#[cfg(target_pointer_width = "64")]
#[inline]
fn untagged(tagged: *mut ()) -> *mut () {
    tagged.map_addr(|address| (address as isize >> SITE) as usize)
}

#[cfg(not(target_pointer_width = "64"))]
impl Place {
    pub(super) fn new(body: NonNull<()>, site: u16) -> Option<Place> {
        Some(Place {
            body: AtomicPtr::new(body.as_ptr()),
            site: AtomicU16::new(site),
        })
    }

    fn parts(&self) -> (NonNull<()>, u16) {
        // SAFETY: made of one that is not null.
        let body = unsafe { NonNull::new_unchecked(self.body.load(Relaxed)) };
        (body, self.site.load(Relaxed))
    }
}

impl Place {
    /// Of a slot without a tenant.
    #[cfg(loom)]
    pub(super) fn none() -> Place {
        Place {
            body: AtomicPtr::new(core::ptr::null_mut()),
        }
    }
}

/// The calls through the vtable.
///
/// # Safety
/// Of each: as the field of the vtable says. The sites are those of the coroutine's domain.
impl<H: Host> Slot<H> {
    /// The body, and the calls of its type.
    #[inline]
    fn body(&self, sites: &SpawnSites<H>) -> (NonNull<()>, &'static VTable<H>) {
        let (body, site) = self.place.parts();
        // SAFETY: it has been interned there.
        (body, unsafe { sites.get(site) }.vtable)
    }

    /// Where it was spawned.
    pub(crate) fn spawned_at(
        &self,
        sites: &SpawnSites<H>,
    ) -> &'static core::panic::Location<'static> {
        let (_, site) = self.place.parts();
        // SAFETY: it has been interned there.
        unsafe { sites.get(site) }.location
    }

    #[inline]
    pub(crate) unsafe fn poll(&self, sites: &SpawnSites<H>, cx: &mut Context<'_>) -> Option<Ended> {
        let (body, vtable) = self.body(sites);
        // SAFETY: passed on.
        unsafe { (vtable.poll)(body, cx) }
    }

    pub(crate) unsafe fn cancel(&self, sites: &SpawnSites<H>) -> Ended {
        let (body, vtable) = self.body(sites);
        // SAFETY: passed on.
        unsafe { (vtable.cancel)(body) }
    }

    #[inline]
    pub(crate) unsafe fn take_output(&self, sites: &SpawnSites<H>, to: *mut ()) {
        let (body, vtable) = self.body(sites);
        // SAFETY: passed on.
        unsafe { (vtable.take_output)(body, to) }
    }

    pub(crate) unsafe fn drop_output(&self, sites: &SpawnSites<H>) {
        let (body, vtable) = self.body(sites);
        // SAFETY: passed on.
        unsafe { (vtable.drop_output)(body) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_an_address_and_a_number() {
        let mut word = 0u64;
        let body = NonNull::from(&mut word).cast::<()>();
        for site in [0, 1, 0x7fff, 0x8000, u16::MAX] {
            let place = Place::new(body, site).unwrap();
            assert_eq!(place.parts(), (body, site));
        }
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn an_address_of_the_upper_half_is_one_and_a_longer_one_is_none() {
        let of = |address| NonNull::new(core::ptr::without_provenance_mut::<()>(address)).unwrap();
        let upper = of(0xffff_ffc0_8020_0040);
        assert_eq!(Place::new(upper, 9).unwrap().parts(), (upper, 9));
        assert!(Place::new(of(1 << 48), 9).is_none());
        assert!(Place::new(of(1 << 47), 9).is_none());
    }
}
