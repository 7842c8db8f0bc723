//! Writes lines to the console, and reads bytes from it.
//!
//! Output waits for the serial port; it is for messages, not for data. Input is interrupt-driven:
//! the handler puts bytes into a ring of [`RING`] bytes and wakes the readers; bytes that do not
//! fit are dropped.

use core::fmt;

use crate::arch::hart_index;
use crate::arch::lock::{IrqLock, Once};
use crate::arch::uart::Uart;
use crate::devices;
use crate::machine::{Device, Machine};
use crate::waiters::{Awaited, Waiters, wait_until};

/// Size of the ring for input, in bytes.
const RING: usize = 256;

struct Console {
    uart: Option<Uart>,
    ring: [u8; RING],
    /// Number of all bytes that were written to the ring.
    written: usize,
    /// Number of all bytes that were read from the ring.
    read: usize,
    readers: Waiters,
    /// Index of the hart that handled the last input interrupt, for tests.
    served_by: usize,
}

impl Console {
    const fn new() -> Console {
        Console {
            uart: None,
            ring: [0; RING],
            written: 0,
            read: 0,
            readers: Waiters::new(),
            served_by: 0,
        }
    }
}

static CONSOLE: IrqLock<Console> = IrqLock::new(Console::new());

/// Serial port of the panic handler, known once the device tree has been read.
static PANIC_UART: Once<Device> = Once::new();

pub(crate) fn init(machine: &Machine) {
    if let Some(device) = machine.uart {
        PANIC_UART.set(device);
        CONSOLE.lock().uart = Uart::new(device);
    }
}

pub(crate) fn enable_input(machine: &Machine) {
    if let Some(device) = machine.uart {
        devices::attach(device, |_| handle_interrupt(), 0);
        if let Some(uart) = &mut CONSOLE.lock().uart {
            uart.enable_input();
        }
    }
}

fn handle_interrupt() {
    let mut console = CONSOLE.lock();
    console.served_by = hart_index();
    while let Some(byte) = console.uart.as_mut().and_then(Uart::receive) {
        console.push(byte);
    }
    let readers = console.readers.take();
    drop(console);
    readers.wake();
}

/// Returns the interrupt source of the serial port.
#[cfg(feature = "selftest")]
pub(crate) fn source() -> Option<u32> {
    PANIC_UART.try_get().map(|device| device.interrupt())
}

#[cfg(feature = "selftest")]
pub(crate) fn loop_back(byte: u8) {
    if let Some(uart) = &mut CONSOLE.lock().uart {
        uart.loop_back(byte);
    }
}

#[cfg(feature = "selftest")]
pub(crate) fn served_by() -> usize {
    CONSOLE.lock().served_by
}

impl Console {
    fn push(&mut self, byte: u8) {
        if self.written - self.read < RING {
            self.ring[self.written % RING] = byte;
            self.written += 1;
        }
    }

    fn pop(&mut self) -> Option<u8> {
        (self.read < self.written).then(|| {
            self.read += 1;
            self.ring[(self.read - 1) % RING]
        })
    }

    fn take(&mut self, buffer: &mut [u8]) -> Option<usize> {
        let mut count = 0;
        while count < buffer.len()
            && let Some(byte) = self.pop()
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

pub(crate) fn write(bytes: &[u8]) {
    CONSOLE.lock().send(bytes);
}

impl Awaited for Console {
    fn waiters(&mut self) -> &mut Waiters {
        &mut self.readers
    }
}

pub(crate) async fn readable() {
    wait_until(&CONSOLE, |console| {
        (console.read < console.written).then_some(())
    })
    .await;
}

pub(crate) fn try_read(buffer: &mut [u8]) -> Option<usize> {
    CONSOLE.lock().take(buffer)
}

impl fmt::Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}

/// Prints a line in one piece; the implementation of `println!`.
pub(crate) fn print(line: fmt::Arguments<'_>) {
    use fmt::Write;
    // The port reports no errors.
    let _ = writeln!(CONSOLE.lock(), "{line}");
}

/// Prints a last line in any state of the console, because the code that panicked may hold the
/// console's lock.
pub(crate) fn print_last(line: fmt::Arguments<'_>) {
    use fmt::Write;
    let mut console = Console::new();
    console.uart = match PANIC_UART.try_get() {
        Some(device) => Uart::new(*device),
        None => Uart::default_device(),
    };
    let _ = writeln!(console, "{line}");
}

/// Prints a line on the console.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*)) };
}
