//! Steps that go on beside others, which need the machine only now and then: a virtual machine with a bad link waits nearly always. They stand back behind what
//! they go on beside, and what they say is kept until somebody asks for it.

use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::step::{Ended, Step};

/// Steps under way.
pub struct Beside {
    ended: Receiver<Ended>,
}

impl Beside {
    /// Begins with the first step of each row; the others of a row follow one by one. What they print stands in `scratch` meanwhile.
    pub fn start<'a>(rows: impl IntoIterator<Item = &'a [Step]>, scratch: &Path) -> Beside {
        let (tell, ended) = mpsc::channel();
        for row in rows {
            let (tell, row, scratch) = (tell.clone(), row.to_owned(), scratch.to_owned());
            thread::spawn(move || {
                for step in row {
                    // Nobody may be left who wants to know.
                    let _ = tell.send(step.run_quietly(&scratch));
                }
            });
        }
        Beside { ended }
    }

    /// Those that have ended since somebody asked.
    pub fn ended(&self) -> impl Iterator<Item = Ended> + '_ {
        self.ended.try_iter()
    }

    /// The others, as they end.
    pub fn rest(self) -> impl Iterator<Item = Ended> {
        self.ended.into_iter()
    }
}
