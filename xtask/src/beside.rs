//! Steps that run beside others because they need the machine only now and then: a virtual machine with a bad link, for instance, waits nearly all the time.
//! They run at a lower priority than the steps beside them, and their output is kept until it is asked for.

use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use crate::step::{Ended, Step};

/// Steps under way.
pub struct Beside {
    ended: Receiver<Ended>,
}

impl Beside {
    /// Starts the first step of each row; the others of a row follow one by one. Their output is kept in `scratch` meanwhile.
    pub fn start<'a>(rows: impl IntoIterator<Item = &'a [Step]>, scratch: &Path) -> Beside {
        let (tell, ended) = mpsc::channel();
        for row in rows {
            let (tell, row, scratch) = (tell.clone(), row.to_owned(), scratch.to_owned());
            thread::spawn(move || {
                for step in row {
                    // The receiver may be gone.
                    let _ = tell.send(step.run_quietly(&scratch));
                }
            });
        }
        Beside { ended }
    }

    /// The steps that have ended since the last call.
    pub fn ended(&self) -> impl Iterator<Item = Ended> + '_ {
        self.ended.try_iter()
    }

    /// The remaining steps, as they end.
    pub fn rest(self) -> impl Iterator<Item = Ended> {
        self.ended.into_iter()
    }
}
