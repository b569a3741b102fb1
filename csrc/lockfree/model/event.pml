/* os::Event: a wake is never lost, even if a waiter dies asleep. README.md says what is modelled.
 *
 * One statement is one access to shared memory, or one system call, in the order of event.hpp. Each
 * notifier adds one to a value, and waiters wait for the last. Waits have no time limit here, unlike
 * the shipped ones. LOOK_FIRST, READ_FIRST and SAME_WORD each break one part.
 */
#define WAITERS 2
#define NOTIFIERS 3

byte word, value, gone;
bool asleep[WAITERS];

#define READY (value == NOTIFIERS)

proctype waiter(byte me) {
  byte announced;
  bool ready;
  do
  ::
#ifdef LOOK_FIRST
     ready = READY;
#endif
     d_step { announced = word | 1; word = announced }
#ifndef LOOK_FIRST
     ready = READY;
#endif
     if
     :: ready -> break
     :: else
     fi;
     /* FUTEX_WAIT compares the word and falls asleep in one step. */
     d_step { if :: word == announced -> asleep[me] = true :: else fi }
     if
     :: !asleep[me]
     :: asleep[me] && me == 0 -> asleep[me] = false; break /* Killed. */
     fi;
     if
     :: READY -> break
     :: else
     fi
  od;
  gone++
}

proctype notifier() {
  byte seen, i;
#ifdef READ_FIRST
  seen = word;
  value++;
#else
  value++;
  seen = word;
#endif
  if
  :: seen % 2 == 1 ->
#ifndef SAME_WORD
     d_step { if :: word == seen -> word = seen + 1 :: else fi }
#endif
     d_step {
       do
       :: i < WAITERS -> asleep[i] = false; i++
       :: else -> break
       od
     }
  :: else
  fi
}

init {
  byte i;
  atomic {
    do
    :: i < WAITERS -> run waiter(i); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < NOTIFIERS -> run notifier(); i++
    :: else -> break
    od
  }
  timeout; /* When no process can move. */
  assert(gone == WAITERS)
}
