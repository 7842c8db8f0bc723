//! Describes the machine, according to its device tree.
//!
//! The tree determines harts (with gaps, in any order), memory, clock and devices. The only
//! assumption is that of `-machine virt`: the kernel is loaded at the address for which it is
//! linked.

use core::ops::Range;

use crate::MAX_HARTS;
use crate::device_tree::{DeviceTree, Node};
use crate::memory::PhysAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Uart,
    Plic,
    /// The device that ends the machine.
    Finisher,
    /// A virtio slot with registers in memory, with or without a device.
    Virtio,
}

impl Kind {
    fn of(node: &Node<'_>) -> Option<Kind> {
        [
            ("ns16550a", Kind::Uart),
            ("riscv,plic0", Kind::Plic),
            ("sifive,test1", Kind::Finisher),
            ("virtio,mmio", Kind::Virtio),
        ]
        .into_iter()
        .find_map(|(name, kind)| node.is_compatible(name).then_some(kind))
    }
}

/// A device with registers and an interrupt. Only this module creates values, from the device tree,
/// so drivers can rely on the existence of the device at its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    kind: Kind,
    base: PhysAddr,
    size: usize,
    interrupt: u32,
}

impl Device {
    fn of(node: &Node<'_>) -> Option<Device> {
        let (base, size) = node.region()?;
        Some(Device {
            kind: Kind::of(node)?,
            base: PhysAddr::new(base),
            size,
            interrupt: node.words("interrupts").next().unwrap_or(0),
        })
    }

    pub(crate) fn kind(self) -> Kind {
        self.kind
    }

    pub(crate) fn base(self) -> PhysAddr {
        self.base
    }

    pub(crate) fn size(self) -> usize {
        self.size
    }

    /// Returns the interrupt source, or 0 if there is none.
    pub(crate) fn interrupt(self) -> u32 {
        self.interrupt
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HartInfo {
    pub(crate) id: usize,
    /// `phandle` of the hart's own interrupt controller.
    controller: u32,
    /// Context of the hart at the PLIC, in S-mode.
    pub(crate) plic_context: Option<usize>,
    /// True if the hart has `stimecmp`.
    pub(crate) sstc: bool,
}

/// A list of fixed size, because there is no heap while booting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List<T, const N: usize> {
    items: [Option<T>; N],
}

impl<T: Copy, const N: usize> List<T, N> {
    const fn new() -> List<T, N> {
        List { items: [None; N] }
    }

    /// Adds an item; an item that does not fit is dropped.
    fn add(&mut self, item: T) {
        if let Some(slot) = self.items.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(item);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter().flatten()
    }

    fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        for slot in &mut self.items {
            *slot = slot.filter(&mut keep);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }
}

pub(crate) struct Machine {
    pub(crate) memory: Range<usize>,
    /// The harts that have an MMU; after [`Machine::use_harts`] only the harts that are used, at
    /// most [`MAX_HARTS`].
    pub(crate) harts: List<HartInfo, { 2 * MAX_HARTS }>,
    /// Ticks of the clock per second.
    pub(crate) timebase: u64,
    pub(crate) uart: Option<Device>,
    pub(crate) plic: Option<Device>,
    pub(crate) finisher: Option<Device>,
    /// The virtio slots, with or without a device.
    pub(crate) virtio: List<Device, 32>,
    pub(crate) arguments: &'static str,
    pub(crate) archive: Option<Range<usize>>,
}

impl Machine {
    /// Restricts the machine to at most [`MAX_HARTS`] harts. With `alternate` the kernel uses only
    /// harts whose ids are as even or odd as that of the boot hart; the others stay with the
    /// firmware, for tests (`runner/src/qemu.rs` explains the reason).
    pub(crate) fn use_harts(&mut self, boot_hart: usize, alternate: bool) {
        let parity = boot_hart % 2;
        self.harts
            .retain(|hart| !alternate || hart.id % 2 == parity);
        let mut others = 0..MAX_HARTS - 1;
        self.harts
            .retain(|hart| hart.id == boot_hart || others.next().is_some());
    }

    /// Reads the tree; `None` if it lacks memory, clock or harts.
    pub(crate) fn new(tree: DeviceTree<'static>) -> Option<Machine> {
        let mut machine = Machine {
            memory: 0..0,
            harts: List::new(),
            timebase: 0,
            uart: None,
            plic: None,
            finisher: None,
            virtio: List::new(),
            arguments: "",
            archive: None,
        };
        // A controller node follows its hart; the PLIC may precede both.
        let mut hart = None;
        for node in tree.nodes() {
            match node.name.split('@').next() {
                Some("memory") => machine.add_memory(&node),
                Some("cpus") => machine.timebase = node.number("timebase-frequency")?,
                Some("cpu") => hart = usable_hart(&node),
                Some("interrupt-controller") => {
                    if let (Some(mut hart), Some(phandle)) = (hart.take(), node.number("phandle")) {
                        hart.controller = phandle as u32;
                        machine.harts.add(hart);
                    }
                }
                Some("chosen") => machine.read_chosen(&node),
                _ => machine.add_device(&node),
            }
        }
        for node in tree
            .nodes()
            .filter(|node| node.is_compatible("riscv,plic0"))
        {
            machine.read_contexts(&node);
        }
        let is_complete =
            !machine.memory.is_empty() && machine.timebase != 0 && machine.harts.len() != 0;
        is_complete.then_some(machine)
    }

    /// Adds memory. Only the largest region is used.
    fn add_memory(&mut self, node: &Node<'_>) {
        if let Some((start, size)) = node.region()
            && size > self.memory.len()
        {
            self.memory = start..start.saturating_add(size);
        }
    }

    fn read_chosen(&mut self, node: &Node<'static>) {
        self.arguments = node.text("bootargs").unwrap_or("");
        let start = node.number("linux,initrd-start");
        if let (Some(start), Some(end)) = (start, node.number("linux,initrd-end")) {
            self.archive = Some(start as usize..end as usize);
        }
    }

    fn add_device(&mut self, node: &Node<'_>) {
        let Some(device) = Device::of(node) else {
            return;
        };
        match device.kind {
            Kind::Uart => self.uart = Some(device),
            Kind::Plic => self.plic = Some(device),
            Kind::Finisher => self.finisher = Some(device),
            Kind::Virtio => self.virtio.add(device),
        }
    }

    /// Reads the contexts of the PLIC, which lists them in order, as pairs of a controller and its
    /// interrupt. The kernel uses the external interrupt of S-mode.
    fn read_contexts(&mut self, node: &Node<'_>) {
        const SUPERVISOR_EXTERNAL: u32 = 9;
        let mut words = node.words("interrupts-extended");
        let mut context = 0;
        while let (Some(controller), Some(interrupt)) = (words.next(), words.next()) {
            for hart in self.harts.items.iter_mut().flatten() {
                if hart.controller == controller && interrupt == SUPERVISOR_EXTERNAL {
                    hart.plic_context = Some(context);
                }
            }
            context += 1;
        }
    }
}

/// Returns the hart of a node if it is enabled and has the MMU that the kernel needs.
fn usable_hart(node: &Node<'_>) -> Option<HartInfo> {
    let is_enabled = node.text("status").is_none_or(|status| status == "okay");
    let mmu = node.text("mmu-type")?;
    let has_sv39 = matches!(mmu, "riscv,sv39" | "riscv,sv48" | "riscv,sv57");
    let isa = node.text("riscv,isa").unwrap_or("");
    (is_enabled && has_sv39).then_some(HartInfo {
        id: node.number("reg")? as usize,
        controller: 0,
        plic_context: None,
        sstc: isa.split('_').any(|extension| extension == "sstc"),
    })
}
