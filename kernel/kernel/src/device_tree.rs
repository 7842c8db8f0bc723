//! Parses flattened device trees (Devicetree Specification 0.4, chapter 5).
//!
//! The parser is safe for any bytes: offsets are checked, and a malformed tree ends early. Nodes
//! are visited in the order of the tree, so a child follows its parent.

#[derive(Clone, Copy)]
pub(crate) struct DeviceTree<'a> {
    structure: &'a [u8],
    strings: &'a [u8],
}

/// Number of bytes that [`total_size`] needs.
pub(crate) const HEADER: usize = 40;

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOP: u32 = 4;

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// Returns the size of the whole tree from its header, or `None` if the bytes are not a tree.
pub(crate) fn total_size(header: &[u8]) -> Option<usize> {
    (word(header, 0)? == MAGIC).then_some(word(header, 4)? as usize)
}

fn text(bytes: &[u8]) -> Option<&str> {
    core::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()
}

impl<'a> DeviceTree<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Option<DeviceTree<'a>> {
        total_size(bytes)?;
        let part = |offset: usize, size: usize| {
            let start = word(bytes, offset)? as usize;
            bytes.get(start..start.checked_add(word(bytes, size)? as usize)?)
        };
        Some(DeviceTree {
            structure: part(8, 36)?,
            strings: part(12, 32)?,
        })
    }

    /// Returns all nodes, parents before children.
    pub(crate) fn nodes(self) -> impl Iterator<Item = Node<'a>> {
        let mut at = 0;
        core::iter::from_fn(move || {
            loop {
                match word(self.structure, at)? {
                    BEGIN_NODE => {
                        let name = text(self.structure.get(at + 4..)?)?;
                        at += 4 + (name.len() + 1).next_multiple_of(4);
                        let tree = self;
                        return Some(Node {
                            name,
                            tree,
                            properties: at,
                        });
                    }
                    END_NODE | NOP => at += 4,
                    PROPERTY => at = self.property(at)?.end,
                    _ => return None,
                }
            }
        })
    }

    fn property(self, at: usize) -> Option<Property<'a>> {
        let size = word(self.structure, at + 4)? as usize;
        let name = word(self.structure, at + 8)? as usize;
        let start = at + 12;
        Some(Property {
            name: text(self.strings.get(name..)?)?,
            value: self.structure.get(start..start.checked_add(size)?)?,
            end: start + size.next_multiple_of(4),
        })
    }
}

struct Property<'a> {
    name: &'a str,
    value: &'a [u8],
    /// Offset of the end of the property in the structure block.
    end: usize,
}

#[derive(Clone, Copy)]
pub(crate) struct Node<'a> {
    /// Name with the unit address: `cpu@0`; empty for the root.
    pub(crate) name: &'a str,
    tree: DeviceTree<'a>,
    /// Offset of the first property in the structure block.
    properties: usize,
}

impl<'a> Node<'a> {
    pub(crate) fn bytes(&self, name: &str) -> Option<&'a [u8]> {
        let mut at = self.properties;
        loop {
            match word(self.tree.structure, at)? {
                PROPERTY => {
                    let property = self.tree.property(at)?;
                    if property.name == name {
                        return Some(property.value);
                    }
                    at = property.end;
                }
                NOP => at += 4,
                _ => return None,
            }
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<&'a str> {
        text(self.bytes(name)?)
    }

    /// Returns the words of a property; none if it is missing.
    pub(crate) fn words(&self, name: &str) -> impl Iterator<Item = u32> + 'a {
        let bytes = self.bytes(name).unwrap_or(&[]);
        (0..bytes.len() / 4).filter_map(move |n| word(bytes, 4 * n))
    }

    pub(crate) fn number(&self, name: &str) -> Option<u64> {
        self.words(name).fold(None, |high, low| {
            Some(high.unwrap_or(0) << 32 | u64::from(low))
        })
    }

    pub(crate) fn is_compatible(&self, name: &str) -> bool {
        let list = self.bytes("compatible").unwrap_or(&[]);
        list.split(|byte| *byte == 0)
            .any(|entry| entry == name.as_bytes())
    }

    /// Returns the first address and size in `reg`, which have two words each.
    pub(crate) fn region(&self) -> Option<(usize, usize)> {
        let mut words = self.words("reg");
        let mut pair = || Some((words.next()? as usize) << 32 | words.next()? as usize);
        Some((pair()?, pair()?))
    }
}
