//! The console: lines out, bytes in.
//!
//! Output waits for the serial port; it is for messages, not for data. Input is interrupt-driven:
//! the handler puts bytes into a ring of [`RING`] bytes and wakes the readers; bytes that do not
//! fit are dropped, as by any terminal that is not read.

use core::fmt;

use crate::arch::hart_index;
use crate::arch::lock::{IrqLock, Once};
use crate::arch::uart::Uart;
use crate::devices;
use crate::machine::{Device, Machine};
use crate::waiters::{Awaited, Waiters, until};

const RING: usize = 256;

struct Console {
    uart: Option<Uart>,
    ring: [u8; RING],
    /// Bytes ever put in and taken out.
    put: usize,
    taken: usize,
    readers: Waiters,
    /// The hart that was interrupted last.
    served_by: usize,
}

impl Console {
    const fn new() -> Console {
        Console {
            uart: None,
            ring: [0; RING],
            put: 0,
            taken: 0,
            readers: Waiters::new(),
            served_by: 0,
        }
    }
}

static CONSOLE: IrqLock<Console> = IrqLock::new(Console::new());

/// Device of the last line of a panic, once the device tree is read.
static LAST_RESORT: Once<Device> = Once::new();

/// Finds the serial port.
pub(crate) fn init(machine: &Machine) {
    if let Some(device) = machine.uart {
        LAST_RESORT.set(device);
        CONSOLE.lock().uart = Uart::new(device);
    }
}

/// Lets the serial port interrupt.
pub(crate) fn enable_input(machine: &Machine) {
    if let Some(device) = machine.uart {
        devices::attach(device, |_| take_input(), 0);
        if let Some(uart) = &mut CONSOLE.lock().uart {
            uart.enable_input();
        }
    }
}

/// The handler of its interrupt.
fn take_input() {
    let mut console = CONSOLE.lock();
    console.served_by = hart_index();
    while let Some(byte) = console.uart.as_mut().and_then(Uart::receive) {
        console.put_in(byte);
    }
    let readers = console.readers.take();
    drop(console);
    readers.wake();
}

/// Returns the console's interrupt source.
#[cfg(feature = "selftest")]
pub(crate) fn source() -> Option<u32> {
    LAST_RESORT.try_get().map(|device| device.interrupt())
}

/// Lets a byte come in.
#[cfg(feature = "selftest")]
pub(crate) fn loop_back(byte: u8) {
    if let Some(uart) = &mut CONSOLE.lock().uart {
        uart.loop_back(byte);
    }
}

/// Returns the hart that was interrupted last.
#[cfg(feature = "selftest")]
pub(crate) fn served_by() -> usize {
    CONSOLE.lock().served_by
}

impl Console {
    fn put_in(&mut self, byte: u8) {
        if self.put - self.taken < RING {
            self.ring[self.put % RING] = byte;
            self.put += 1;
        }
    }

    fn take_out(&mut self) -> Option<u8> {
        (self.taken < self.put).then(|| {
            self.taken += 1;
            self.ring[(self.taken - 1) % RING]
        })
    }

    fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut count = 0;
        while count < buffer.len()
            && let Some(byte) = self.take_out()
        {
            buffer[count] = byte;
            count += 1;
        }
        (count > 0 || buffer.is_empty()).then_some(count)
    }

    fn send(&mut self, bytes: &[u8]) {
        if let Some(uart) = &mut self.uart {
            for &byte in bytes {
                uart.send(byte);
            }
        }
    }
}

/// Writes bytes.
pub(crate) fn write(bytes: &[u8]) {
    CONSOLE.lock().send(bytes);
}

impl Awaited for Console {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.readers
    }
}

/// Waits for input.
pub(crate) async fn readable() {
    until(&CONSOLE, |console| {
        (console.taken < console.put).then_some(())
    })
    .await;
}

/// Takes as much input as there is, if there is any.
pub(crate) fn try_read(buffer: &mut [u8]) -> Option<usize> {
    CONSOLE.lock().take(buffer)
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}

/// The `println!` of the kernel: one line at a time, whole.
pub(crate) fn print(line: fmt::Arguments<'_>) {
    use fmt::Write;
    // The port reports no errors.
    let _ = writeln!(CONSOLE.lock(), "{line}");
}

/// Writes a last line in any state of the console: its lock may be held by the code that panicked.
pub(crate) fn print_last(line: fmt::Arguments<'_>) {
    use fmt::Write;
    let mut console = Console::new();
    console.uart = match LAST_RESORT.try_get() {
        Some(device) => Uart::new(*device),
        None => Uart::usual(),
    };
    let _ = writeln!(console, "{line}");
}

/// Prints a line on the console.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*)) };
}
