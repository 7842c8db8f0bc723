//! Collects events into a recording, a [`Timeline`].

use std::collections::HashMap;
use std::io::{self, Write};

use upshift_core::Change;

use crate::event::{Coroutine, Event, EventKind};
use crate::{chrome, svg};

/// A recording: events of all vCPUs, ordered by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Timeline {
    /// Name of the recorded program, or case of the simulator.
    pub name: String,
    /// Number of vCPUs, including those without events.
    pub vcpus: u32,
    /// Length of the recording, in ns.
    pub length: u64,
    /// Number of events that were overwritten by newer events, or found no room.
    pub lost: u64,
    /// Spawn sites, `FILE:LINE:COLUMN`: [`Coroutine::site`](crate::Coroutine::site) is an index
    /// into them.
    pub sites: Vec<String>,
    /// Events, ordered by time.
    pub events: Vec<Event>,
    #[cfg_attr(feature = "serde", serde(skip))]
    site_numbers: HashMap<String, u32>,
}

impl Timeline {
    /// Creates an empty timeline.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Timeline {
        Timeline {
            name: name.into(),
            ..Timeline::default()
        }
    }

    /// Returns the number of a spawn site. Costs one look-up by hash.
    pub fn site(&mut self, place: &str) -> u32 {
        if let Some(&number) = self.site_numbers.get(place) {
            return number;
        }
        let number = self.sites.len() as u32;
        self.sites.push(place.into());
        self.site_numbers.insert(place.into(), number);
        number
    }

    /// Returns the name of a spawn site; `?` for an unknown number.
    #[must_use]
    pub fn site_name(&self, number: u32) -> &str {
        self.sites.get(number as usize).map_or("?", String::as_str)
    }

    /// Adds an event. Events of the same instant stay in the order in which they were added;
    /// [`Timeline::sort`] puts the others in order.
    pub fn add(&mut self, at: u64, vcpu: u32, kind: EventKind) {
        self.vcpus = self.vcpus.max(vcpu.saturating_add(1));
        self.length = self.length.max(at);
        self.events.push(Event { at, vcpu, kind });
    }

    /// Adds a step of a coroutine, of which a scheduler notified its host
    /// ([`Host::on_step`](upshift_core::Host::on_step)).
    pub fn change(&mut self, at: u64, change: &Change) {
        let coroutine = Coroutine {
            id: change.id,
            level: change.level,
            site: self.site(&change.location.to_string()),
            by: change.by.map(|by| by as u32),
        };
        self.add(
            at,
            change.vcpu as u32,
            EventKind::Coroutine(change.step, coroutine),
        );
    }

    /// Orders the events by time.
    pub fn sort(&mut self) {
        self.events.sort_by_key(|event| event.at);
    }

    /// Writes the timeline as Chrome trace events.
    ///
    /// # Errors
    /// Returns the errors of `out`.
    pub fn write_chrome(&self, out: impl Write) -> io::Result<()> {
        let mut writer = chrome::Writer::new(out, &self.name, self.vcpus)?;
        for event in &self.events {
            let site = match event.kind {
                EventKind::Coroutine(_, coroutine) => self.site_name(coroutine.site),
                _ => "",
            };
            writer.event(event, site)?;
        }
        writer.finish(self.length, self.lost)?;
        Ok(())
    }

    /// Draws the timeline.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::draw(self)
    }
}
