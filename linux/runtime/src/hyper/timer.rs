//! hyper's timer on the timer wheel of the vCPU.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::time;

/// The runtime's clock for hyper's timeouts. A reset costs no allocation.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

struct Sleep(time::Sleep);

impl Future for Sleep {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        Pin::new(&mut self.0).poll(cx)
    }
}

impl ::hyper::rt::Sleep for Sleep {}

impl ::hyper::rt::Timer for Clock {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(Sleep(time::sleep(duration)))
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn ::hyper::rt::Sleep>> {
        Box::pin(Sleep(time::sleep_until(deadline)))
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn ::hyper::rt::Sleep>>, deadline: Instant) {
        match sleep.as_mut().downcast_mut_pin::<Sleep>() {
            Some(own_sleep) => own_sleep.get_mut().0.reset(deadline),
            None => *sleep = self.sleep_until(deadline),
        }
    }
}
