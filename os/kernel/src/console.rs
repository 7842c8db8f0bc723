//! The console: lines out, bytes in.
//!
//! Output waits for the serial port; it is for messages, not for data. Input is
//! interrupt-driven: the handler puts bytes into a ring of [`RING`] bytes and
//! wakes the readers; what does not fit is dropped, as by any terminal that
//! nobody reads from.

use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::arch::lock::{IrqLock, Once};
use crate::arch::plic::Plic;
use crate::arch::uart::Uart;
use crate::machine::Machine;
use crate::memory::PhysAddr;
use crate::waiters::{Awaited, Waiters, until};

const RING: usize = 256;

struct Console {
    uart: Option<Uart>,
    ring: [u8; RING],
    /// Bytes ever put in and taken out.
    put: usize,
    taken: usize,
    readers: Waiters,
}

impl Console {
    const fn new() -> Console {
        Console {
            uart: None,
            ring: [0; RING],
            put: 0,
            taken: 0,
            readers: Waiters::new(),
        }
    }
}

static CONSOLE: IrqLock<Console> = IrqLock::new(Console::new());

/// Where a panic writes: where QEMU has the port, until the device tree is read.
static LAST_RESORT: AtomicUsize = AtomicUsize::new(0x1000_0000);

static PLIC: Once<(Plic, u32)> = Once::new();

/// Finds the serial port.
pub(crate) fn init(machine: &Machine) {
    if let Some(device) = machine.uart {
        LAST_RESORT.store(device.base.get(), Relaxed);
        CONSOLE.lock().uart = Uart::new(device.base);
    }
}

/// Lets the serial port interrupt the calling hart, whose context at the
/// interrupt controller this is.
pub(crate) fn enable_input(machine: &Machine, context: usize) {
    if let (Some(device), Some(base)) = (machine.uart, machine.plic)
        && let Some(plic) = Plic::new(base, context)
    {
        plic.enable(device.interrupt);
        PLIC.set((plic, device.interrupt));
        if let Some(uart) = &mut CONSOLE.lock().uart {
            uart.enable_input();
        }
    }
}

/// The handler of device interrupts.
pub(crate) fn serve_devices() {
    let Some((plic, source)) = PLIC.try_get() else {
        return;
    };
    plic.serve(|served| {
        if served == *source {
            let mut console = CONSOLE.lock();
            while let Some(byte) = console.uart.as_mut().and_then(Uart::receive) {
                console.put_in(byte);
            }
            let readers = console.readers.take();
            drop(console);
            readers.wake();
        }
    });
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

/// Writes a last line whatever state the console is in: its lock may be held by
/// the code that panicked.
pub(crate) fn print_last(line: fmt::Arguments<'_>) {
    use fmt::Write;
    let mut console = Console::new();
    console.uart = Uart::new(PhysAddr::new(LAST_RESORT.load(Relaxed)));
    let _ = writeln!(console, "{line}");
}

/// Prints a line on the console.
#[macro_export]
macro_rules! println {
    ($($arg:tt)*) => { $crate::console::print(format_args!($($arg)*)) };
}
