//! Threads that act for their program, and their death words.

use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::{DeathWords, DeathWordsError, socket};
use martlet_fabric::primitive::{Ordering, fence};
use martlet_protocol::basics::layout::life::{OWNER_DIED, TID_MASK};

use crate::wire::Request;
use crate::words::{MAX_ACTING, death_word};

/// Why a thread holds no death word.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// As many threads of the program hold one as can.
    #[error("{MAX_ACTING} threads of this program act already, as many as there is room for")]
    Many,
    /// The kernel, or the thread itself.
    #[error(transparent)]
    Words(#[from] DeathWordsError),
}

/// The program's death words: on which page, and which are taken.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) page: Page,
    /// A bit each.
    pub(super) taken: Mutex<u64>,
    /// Where the warden is told of them; none while there is no warden.
    pub(super) socket: Mutex<Option<Arc<OwnedFd>>>,
}

impl Words {
    fn tell(&self, request: &Request) {
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // A warden that cannot be told now is gone, or will be left for not answering: the next one is told all words.
            let _ = socket::send(socket, &request.encode(0), &[]);
        }
    }
}

/// By which threads of a program say that they act for it. Any thread may have one.
#[derive(Clone, Debug)]
pub struct Threads(pub(super) Arc<Words>);

/// A thread that acts for its program. Dropped, it acts no more; when the thread ends without dropping it, by SIGKILL too, it has died.
///
/// When all acting threads have died, the application has failed, which the warden knows at once.
#[must_use = "dropped, the thread acts no more"]
#[derive(Debug)]
pub struct Acting {
    words: Option<DeathWords>,
    index: u16,
    shared: Arc<Words>,
    /// The words are the thread's own.
    _thread: PhantomData<*const ()>,
}

impl Threads {
    /// Says that the calling thread acts for the program.
    ///
    /// # Errors
    /// When too many do, or when the system refuses.
    pub fn act(&self) -> Result<Acting, ActError> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.trailing_ones();
        if index >= u32::from(MAX_ACTING) {
            return Err(ActError::Many);
        }
        let words = self.0.page.register_death_words(&[death_word(index as u16)])?;
        *taken |= 1 << index;
        drop(taken);
        self.0.tell(&Request::Act { word: index as u16 });
        Ok(Acting { words: Some(words), index: index as u16, shared: Arc::clone(&self.0), _thread: PhantomData })
    }
}

impl Acting {
    /// Whether another thread that acts is alive. A thread that begins while others act asks before it does anything: if none is, the warden may take the program for dead,
    /// or is about to, for it may have looked at all words just before this thread's stood there.
    pub fn has_company(&self) -> bool {
        // Pairs with the order of the eye's looks, at the word of the thread that died and then at all: either it finds ours, or we find that one dead.
        fence(Ordering::SeqCst);
        let is_alive = |word: u16| {
            let value = self.shared.page.load(death_word(word));
            value & OWNER_DIED == 0 && value & TID_MASK != 0
        };
        (0..MAX_ACTING).any(|word| word != self.index && is_alive(word))
    }

    /// Whether the thread acts for the program by these.
    pub fn is_by(&self, threads: &Threads) -> bool {
        Arc::ptr_eq(&self.shared, &threads.0)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        // First the word, which says by itself that this is no death.
        drop(self.words.take());
        self.shared.tell(&Request::Rest { word: self.index });
        *self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.index);
    }
}
