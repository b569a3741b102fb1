/* The ring with its cells, lanes and reaper. README.md says what is modelled, and what is not.
 *
 * One statement is one access to shared memory, in the order of cell_word.hpp, index_ring.hpp,
 * reaper.hpp and recovery.hpp. Everything else in the same `atomic` or `d_step` is private to the
 * participant, or a ghost: state that only assertions read.
 *
 * Sizes and faults are macros: PRODUCERS, CONSUMERS, REAPERS (pool handles), CELLS, CAPACITY,
 * ITEMS (published by each producer), CRASHES, STOPS, PUT_BACKS (items that a consumer puts back
 * because it cannot map them). RUNS lets a producer publish two cells at once, and a consumer take
 * one of them. NO_PUBLISHING, NO_TAKING, NO_RECHECK, NO_GENERATION, NO_PUBLICATIONS,
 * PUBLISHING_AFTER_RING, BY_ATTEMPT, ONLY_FIRST and NO_WALK each remove or break one part.
 */
#define LANES (PRODUCERS + CONSUMERS + REAPERS)
#define FIRST_CONSUMER PRODUCERS
#define FIRST_REAPER (PRODUCERS + CONSUMERS)
#define ALL_ITEMS (PRODUCERS * ITEMS)

/* Words, as in cell_word.hpp and slot.hpp, with narrower fields. */
#define FREE 0
#define LEASED 1
#define PUBLISHED 2
#define TAKEN 3
#define WORD(state, owner, count) ((state) | (owner) << 2 | (count) << 5)
#define STATE(word) ((word) & 3)
#define OWNER(word) ((word) >> 2 & 7)
/* Generation and publications. */
#define COUNTS(word) ((word) >> 5)
#ifdef NO_PUBLICATIONS
#define COUNTED(state) 0
#else
#define COUNTED(state) ((state) == PUBLISHED)
#endif
#define MOVED(word, state, owner) WORD(state, owner, COUNTS(word) + COUNTED(state))
#define PUBLICATIONS 8
#ifdef NO_GENERATION
#define FREED(word) WORD(FREE, 0, 0)
#else
#define FREED(word) WORD(FREE, 0, (COUNTS(word) / PUBLICATIONS + 1) * PUBLICATIONS)
#endif
#define EMPTY(lap) ((lap) << 5)
#define FULL(lap, cells) ((lap) << 5 | 16 | (cells))
#define IS_FULL(word) ((word) & 16)
#define PHASE(word) ((word) >> 4)
#define RUN_IN(word) ((word) & 15)
/* Consecutive cells; 0 for none. */
#define RUN(first, count) ((count) << 2 | (first))
#define FIRST(cells) ((cells) & 3)
#define COUNT(cells) ((cells) >> 2)
#define HOLDS(cells, c) ((c) >= FIRST(cells) && (c) < FIRST(cells) + COUNT(cells))

#define ALIVE 0
#define LEFT 1
#define DYING 2
#define DEAD 3

/* Shared memory. */
short word[CELLS];
short slot[CAPACITY];
byte tail, head;
byte publishing[LANES], taking[LANES];
byte lane_state[LANES];
byte cell_producer[CELLS];
bool attempted[CELLS];

/* The kernel: byte locks of the lanes, and the recovery lock (lane + 1 of its holder). */
bool locked[LANES];
byte recovery_lock;
bool stopped[LANES];

/* A recovery that has to be retried is retried once something has moved. The outcome is that of
 * retrying all the time, without a meaningless cycle of states. */
bool pending, moved;
#define STEP moved = pending

/* Ghosts. Item 0 is none. Tickets below `filled` were published, those below `emptied` taken. */
byte filled, emptied;
byte item[CELLS];
byte in_ring[CELLS];
byte holder[CELLS]; /* Lane + 1 that took the cell and has not released it. */
bool published[ALL_ITEMS + 1], committed[ALL_ITEMS + 1];

#define alive(lane) (lane_state[lane] == ALIVE && locked[lane])
#define lost(lane) (lane_state[lane] == ALIVE && !locked[lane])
#define held_by_living(c) (holder[c] != 0 && locked[holder[c] - 1])

/* channel::release_cell, inside a step of the caller. */
inline free_cell(c) {
  assert(in_ring[c] == 0);
  assert(!held_by_living(c));
  word[c] = FREED(word[c]);
  item[c] = 0;
  holder[c] = 0;
  STEP
}

inline publish_ghost(c) {
  assert(in_ring[c] == 0);         /* Not in the ring already, */
  assert(!held_by_living(c));      /* not being read, */
  assert(STATE(word[c]) == PUBLISHED && item[c] != 0);
  assert(!committed[item[c]]);     /* not released before. */
  in_ring[c] = 1;
  holder[c] = 0;
  published[item[c]] = true
}

inline publish_slot(t, cells) {
  assert(t == filled);
  filled++;
  slot[t % CAPACITY] = FULL(t / CAPACITY, cells);
  publish_ghost(FIRST(cells));
  if :: COUNT(cells) == 2 -> publish_ghost(FIRST(cells) + 1) :: else fi
}

inline take_ghost(c) {
  assert(in_ring[c] == 1 && !held_by_living(c));
  in_ring[c] = 0;
  holder[c] = me + 1
}

/* Every second ticket advances the hint. A hint only grows, so its load and its compare-and-swap
 * are one step. */
#define TICKETS_PER_HINT 2
#define move_hint(hint, from, limit) \
  if \
  :: (from + 1) % TICKETS_PER_HINT == 0 && hint < from + 1 -> \
     hint = from + 1; \
     assert(hint <= limit) \
  :: else \
  fi

/* A slot that was passed stays passed, so reading such slots is one step with reading the next one.
 * The start of the walk does not matter then: from the hint, and from the lane's own position, it
 * comes to the same slot. */
#ifdef NO_WALK
#define WALK(ticket, phases)
#else
#define WALK(ticket, phases) \
  do \
  :: PHASE(slot[ticket % CAPACITY]) > PHASE(EMPTY(ticket / CAPACITY)) + phases -> ticket++ \
  :: else -> break \
  od;
#endif

#if CAPACITY > 1
#define SOME_FULL (IS_FULL(slot[0]) || IS_FULL(slot[CAPACITY - 1]))
#else
#define SOME_FULL IS_FULL(slot[0])
#endif

/* The next access of a participant. */
#define LEASE 0
#define FILL 1
#define ANNOUNCE_PUSH 2
#define MARK 3
#define TAIL 4
#define SLOT 5
#define PUBLISH 6
#define ADVANCE_TAIL 8
#define END_PUSH 9
#define AFTER_PUSH 10
#define WAIT 11
#define HEAD 12
#define LOOK 13
#define ANNOUNCE_POP 15
#define TAKE 16
#define ADVANCE_HEAD 18
#define MARK_TAKEN 19
#define END_POP 20
#define USE 21
#define NEXT_LANE 22
#define DYING_LANE 23
#define SCAN 24
#define NEXT_MARKED 25
#define READ_INTENT 26
#define READ_INTENDED_WORD 27
#define CHECK_PUBLISHING 28
#define LOOK_IN_RING 29
#define LOOK_FOR_INTENT 30
#define LOOK_AGAIN 31
#define CHECK_WORD 32
#define ATTEMPT 33
#define FREE_IT 34
#define CLEAR_PUBLISHING 35
#define CLEAR_TAKING 36
#define RECLAIMED 37

/* IndexRing::push_run of `cells`, with c, t and w of the participant. There is a slot for every
 * cell, so the ring is never full. */
#ifdef NO_PUBLISHING
#define SET_PUBLISHING(value) skip
#else
#define SET_PUBLISHING(value) publishing[me] = value; STEP
#endif
#define PUSH_STEPS \
  :: d_step { at == ANNOUNCE_PUSH -> SET_PUBLISHING(cells); k = 0; at = MARK } \
  :: d_step { at == MARK -> \
       word[FIRST(cells) + k] = MOVED(word[FIRST(cells) + k], PUBLISHED, me); \
       STEP; \
       k++; \
       if :: k == COUNT(cells) -> k = 0; at = TAIL :: else fi } \
  :: d_step { at == TAIL -> t = tail; at = SLOT } \
  :: d_step { at == SLOT -> \
       WALK(t, 0) \
       w = slot[t % CAPACITY]; \
       assert(PHASE(w) >= PHASE(EMPTY(t / CAPACITY))); \
       if \
       :: w == EMPTY(t / CAPACITY) -> at = PUBLISH \
       :: else -> at = TAIL /* Only without the walk. */ \
       fi } \
  :: d_step { at == PUBLISH -> \
       if \
       :: slot[t % CAPACITY] == w -> publish_slot(t, cells); STEP; at = ADVANCE_TAIL \
       :: else -> at = SLOT \
       fi } \
  :: d_step { at == ADVANCE_TAIL -> move_hint(tail, t, filled); at = END_PUSH } \
  :: d_step { at == END_PUSH -> SET_PUBLISHING(0); t = 0; w = 0; cells = 0; at = AFTER_PUSH }

proctype producer(byte me) {
  byte c, t, cells, k, count;
  short w;
  byte at = LEASE;
  {
    do
    :: atomic { /* try_lease of any free cell: one compare-and-swap. */
         at == LEASE && count < ITEMS;
         if
         :: STATE(word[0]) == FREE -> c = 0
         :: STATE(word[CELLS - 1]) == FREE -> c = CELLS - 1
         fi;
         word[c] = MOVED(word[c], LEASED, me);
         STEP;
         at = FILL
       }
    :: d_step { at == FILL -> /* No other lane reads these fields of a LEASED cell. */
         attempted[c] = false;
         cell_producer[c] = me;
         count++;
         item[c] = me * ITEMS + count;
         cells = RUN(c - COUNT(cells), COUNT(cells) + 1);
         at = ANNOUNCE_PUSH
       }
#ifdef RUNS
    :: atomic { /* The next cell too, to push both at once. */
         at == ANNOUNCE_PUSH && c + 1 < CELLS && count < ITEMS && STATE(word[c + 1]) == FREE;
         c++;
         word[c] = MOVED(word[c], LEASED, me);
         STEP;
         at = FILL
       }
#endif
    PUSH_STEPS
    :: d_step { at == AFTER_PUSH -> c = 0; at = LEASE }
    :: at == LEASE && count == ITEMS -> break
    od;
    atomic { lane_state[me] = LEFT; locked[me] = false; STEP }
  } unless { !locked[me] || stopped[me] }
}

#ifdef NO_TAKING
#define SET_TAKING(value) skip
#else
#define SET_TAKING(value) taking[me] = value; STEP
#endif

proctype consumer(byte me) {
  byte c, h, t, cells, k, put_backs;
  short w;
  byte at = WAIT;
  {
    do
    :: d_step { /* Event::wait on looks_empty, which is polled. */
         at == WAIT && SOME_FULL -> at = HEAD
       }
    /* IndexRing::pop */
    :: d_step { at == HEAD -> h = head; at = LOOK }
    :: d_step { at == LOOK ->
         WALK(h, 1)
         w = slot[h % CAPACITY];
         assert(PHASE(w) >= PHASE(EMPTY(h / CAPACITY)));
         if
         :: w == EMPTY(h / CAPACITY) -> at = AFTER_PUSH
         :: PHASE(w) == PHASE(FULL(h / CAPACITY, 0)) -> cells = RUN_IN(w); at = ANNOUNCE_POP
         :: else -> at = HEAD /* Only without the walk. */
         fi
       }
    :: d_step { at == AFTER_PUSH -> SET_TAKING(0); c = 0; h = 0; w = 0; cells = 0; at = WAIT }
    :: d_step { at == ANNOUNCE_POP -> SET_TAKING(cells); at = TAKE }
#ifdef RUNS
    :: d_step { at == ANNOUNCE_POP && COUNT(cells) == 2 -> /* Wants one only. */
         cells = RUN(FIRST(cells), 1);
         SET_TAKING(cells);
         at = TAKE
       }
#endif
    :: d_step { at == TAKE ->
         if
         :: slot[h % CAPACITY] == w ->
            take_ghost(FIRST(cells));
            if :: COUNT(cells) == 2 -> take_ghost(FIRST(cells) + 1) :: else fi;
            if
            :: COUNT(RUN_IN(w)) > COUNT(cells) ->
               slot[h % CAPACITY] = FULL(h / CAPACITY, RUN(FIRST(cells) + 1, 1));
               h = 0;
               w = 0;
               at = MARK_TAKEN
            :: else ->
               assert(h == emptied);
               emptied++;
               slot[h % CAPACITY] = EMPTY(h / CAPACITY + 1);
               at = ADVANCE_HEAD
            fi;
            STEP
         :: else -> cells = 0; at = LOOK
         fi
       }
    :: d_step { at == ADVANCE_HEAD -> move_hint(head, h, emptied); h = 0; w = 0; at = MARK_TAKEN }
    :: d_step { at == MARK_TAKEN ->
         word[FIRST(cells) + k] = MOVED(word[FIRST(cells) + k], TAKEN, me);
         STEP;
         k++;
         if :: k == COUNT(cells) -> k = 0; at = END_POP :: else fi
       }
    :: d_step { at == END_POP -> SET_TAKING(0); c = FIRST(cells); at = USE }
    :: d_step { at == USE -> /* Reads and releases the item: from then on it is committed. */
         assert(word[c] == WORD(TAKEN, me, COUNTS(word[c])) && holder[c] == me + 1);
         assert(published[item[c]] && !committed[item[c]]);
         committed[item[c]] = true;
         holder[c] = 0;
         free_cell(c);
         if
         :: c + 1 < FIRST(cells) + COUNT(cells) -> c++
         :: else -> c = 0; cells = 0; at = WAIT
         fi
       }
    :: d_step { at == USE && COUNT(cells) == 1 && put_backs < PUT_BACKS -> /* Cannot map it. */
         put_backs++;
         holder[c] = 0;
         at = ANNOUNCE_PUSH
       }
    PUSH_STEPS
    od
  } unless { !locked[me] || stopped[me] }
}

/* The order of settle_taking's looks. */
#ifdef PUBLISHING_AFTER_RING
#define FIRST_CHECK LOOK_IN_RING
#define SECOND_CHECK LOOK_FOR_INTENT
#define THIRD_CHECK CHECK_PUBLISHING
#else
#define FIRST_CHECK CHECK_PUBLISHING
#define SECOND_CHECK LOOK_IN_RING
#define THIRD_CHECK LOOK_FOR_INTENT
#endif
#ifdef NO_RECHECK
#define AFTER_INTENT JUDGED
#else
#define AFTER_INTENT LOOK_AGAIN
#endif
/* A cell that a dead lane marked as published and that never entered the ring is freed, unless it
 * is a redelivery. */
#ifdef BY_ATTEMPT
#define IS_REDELIVERY attempted[c]
#else
#define IS_REDELIVERY cell_producer[c] != d
#endif
#ifdef ONLY_FIRST
#define SETTLED_OF(intended) 1
#else
#define SETTLED_OF(intended) COUNT(intended)
#endif
#define JUDGED (settling_intended || IS_REDELIVERY -> ATTEMPT : FREE_IT)

#if LANES > 5
#define ANY_LOST (lost(0) || lost(1) || lost(2) || lost(3) || lost(4) || lost(5))
#elif LANES > 4
#define ANY_LOST (lost(0) || lost(1) || lost(2) || lost(3) || lost(4))
#elif LANES > 3
#define ANY_LOST (lost(0) || lost(1) || lost(2) || lost(3))
#else
#define ANY_LOST (lost(0) || lost(1) || lost(2))
#endif

#define BY_NOBODY 0
#define BY_DEAD 1

/* A pool handle's monitor: Recovery::reclaim_dead and Reaper::run. The walk over the rings before
 * settle_marked only saves time, and is left out. */
proctype reaper(byte me) {
  byte d, c, i, found, t, cells, k, intended;
  short w, seen;
  byte at = WAIT;
  short marked[CELLS]; /* The word, or 0. */
  bool settling_intended, done, all;
  {
    do
    :: d_step { /* A dead lane to reclaim, and the lock. */
         at == WAIT && recovery_lock == 0 && (pending && moved || ANY_LOST) ->
         recovery_lock = me + 1;
         pending = true;
         moved = false;
         all = true;
         d = 0;
         at = NEXT_LANE
       }
    :: d_step { at == NEXT_LANE ->
         do
         :: d < LANES && !lost(d) && lane_state[d] != DYING -> d++
         :: else -> break
         od;
         if
         :: d < LANES -> at = DYING_LANE
         :: else ->
            recovery_lock = 0;
            if :: all -> pending = false; moved = false :: else fi;
            d = 0;
            all = false;
            at = WAIT
         fi
       }
    :: d_step { at == DYING_LANE -> lane_state[d] = DYING; done = true; c = 0; at = SCAN }
    :: d_step { at == SCAN ->
         if
         :: c == CELLS -> c = 0; at = NEXT_MARKED
         :: else ->
            seen = word[c];
            if
            :: OWNER(seen) != d || STATE(seen) == FREE -> c++
            :: else ->
               if
               :: STATE(seen) == LEASED -> at = FREE_IT
               :: STATE(seen) == TAKEN -> at = ATTEMPT
               :: else -> marked[c] = seen; c++
               fi
            fi
         fi
       }
    :: d_step { at == AFTER_PUSH ->
         seen = 0;
         if
         :: settling_intended ->
            c++;
            if
            :: c < FIRST(intended) + SETTLED_OF(intended) -> at = READ_INTENDED_WORD
            :: else -> at = CLEAR_PUBLISHING
            fi
         :: !settling_intended && marked[c] != 0 -> marked[c] = 0; c++; at = NEXT_MARKED
         :: else -> c++; at = SCAN
         fi
       }
    /* Reaper::settle_marked */
    :: d_step { at == NEXT_MARKED ->
         do
         :: c < CELLS && marked[c] == 0 -> c++
         :: else -> break
         od;
         if
         :: c < CELLS -> seen = marked[c]; i = 0; at = LOOK_IN_RING
         :: else -> settling_intended = true; at = READ_INTENT
         fi
       }
    /* Reaper::settle_taking */
    :: d_step { at == READ_INTENT ->
         if
         :: taking[d] == 0 -> at = CLEAR_PUBLISHING
         :: else -> intended = taking[d]; c = FIRST(intended); at = READ_INTENDED_WORD
         fi
       }
    :: d_step { at == READ_INTENDED_WORD ->
         seen = word[c];
         if
         :: STATE(seen) != PUBLISHED -> at = AFTER_PUSH
         :: else -> i = 0; at = FIRST_CHECK
         fi
       }
    :: d_step { at == CHECK_PUBLISHING ->
         if
         :: HOLDS(publishing[OWNER(seen)], c) && alive(OWNER(seen)) -> done = false; at = AFTER_PUSH
         :: else -> at = SECOND_CHECK
         fi
       }
    /* Reaper::in_ring, then taker_of, then both again. */
    :: d_step { at == LOOK_IN_RING ->
         if
         :: i == CAPACITY ->
            i = FIRST_CONSUMER;
            found = BY_NOBODY;
            if :: settling_intended -> at = THIRD_CHECK :: else -> at = LOOK_FOR_INTENT fi
         :: IS_FULL(slot[i]) && HOLDS(RUN_IN(slot[i]), c) -> i = 0; at = AFTER_PUSH
         :: else -> i++
         fi
       }
    :: d_step { at == LOOK_FOR_INTENT -> /* Producers and pool handles never take. */
         if
         :: i < FIRST_REAPER && HOLDS(taking[i], c) && alive(i) ->
            done = false;
            i = 0;
            found = 0;
            at = AFTER_PUSH
         :: i < FIRST_REAPER && HOLDS(taking[i], c) && !alive(i) -> found = BY_DEAD; i++
         :: i < FIRST_REAPER && !HOLDS(taking[i], c) -> i++
         :: else ->
            i = 0;
            if
            :: found == BY_DEAD && !settling_intended -> at = AFTER_PUSH
            :: else -> at = AFTER_INTENT
            fi;
            found = 0
         fi
       }
    :: d_step { at == LOOK_AGAIN ->
         if
         :: i == CAPACITY -> i = 0; at = CHECK_WORD
         :: IS_FULL(slot[i]) && HOLDS(RUN_IN(slot[i]), c) ->
            done = false;
            moved = true;
            i = 0;
            at = AFTER_PUSH
         :: else -> i++
         fi
       }
    :: d_step { at == CHECK_WORD ->
         if
         :: word[c] != seen -> done = false; moved = true; at = AFTER_PUSH
         :: else -> at = JUDGED
         fi
       }
    :: d_step { at == FREE_IT -> free_cell(c); at = AFTER_PUSH }
    :: d_step { at == ATTEMPT -> attempted[c] = true; cells = RUN(c, 1); at = ANNOUNCE_PUSH }
    PUSH_STEPS
    :: d_step { at == CLEAR_PUBLISHING ->
         settling_intended = false;
         intended = 0;
         c = 0;
         seen = 0;
         if
         :: done -> publishing[d] = 0; at = CLEAR_TAKING
         :: else -> all = false; d++; at = NEXT_LANE
         fi
       }
    :: d_step { at == CLEAR_TAKING -> taking[d] = 0; done = false; at = RECLAIMED }
    :: d_step { at == RECLAIMED -> lane_state[d] = DEAD; d++; at = NEXT_LANE }
    od
  } unless { !locked[me] || stopped[me] }
}

/* Kills or stops any participant before any of its steps, but never kills the last pool handle. */
proctype faults() {
  byte crashes, stops, i;
  do
  :: crashes < CRASHES ->
     atomic {
       i = 0;
       do
       :: i < LANES - 2 -> i++
       :: break
       od;
       if
       :: locked[i] && !stopped[i] ->
          locked[i] = false;
          if :: recovery_lock == i + 1 -> recovery_lock = 0 :: else fi;
          STEP
       :: else
       fi;
       i = 0;
       crashes++
     }
  :: stops < STOPS ->
     atomic {
       i = 0;
       do
       :: i < FIRST_REAPER - 1 -> i++
       :: break
       od;
       if :: locked[i] -> stopped[i] = true :: else fi;
       i = 0;
       stops++
     }
  :: break
  od
}

/* When no participant can move: nothing is lost or leaked, and none waits for a stopped one. */
#define MOVED_BY(c, lane) (stopped[lane] && (HOLDS(publishing[lane], c) || HOLDS(taking[lane], c) || \
  STATE(word[c]) != FREE && OWNER(word[c]) == lane && !(STATE(word[c]) == PUBLISHED && in_ring[c])))

proctype at_rest() {
  byte c, i, kept;
  bool served;
  atomic {
    timeout;
    do
    :: FIRST_CONSUMER + i < FIRST_REAPER ->
       served = served || alive(FIRST_CONSUMER + i) && !stopped[FIRST_CONSUMER + i];
       i++
    :: else -> break
    od;
    do
    :: c < CELLS ->
       i = 0;
       do
       :: i < LANES && !MOVED_BY(c, i) -> i++
       :: else -> break
       od;
       if
       :: i < LANES -> kept++ /* Held by a stopped participant. */
       :: i == LANES && in_ring[c] == 1 -> assert(!served && STATE(word[c]) == PUBLISHED); kept++
       :: else -> assert(STATE(word[c]) == FREE)
       fi;
       if
       :: item[c] != 0 -> committed[item[c]] = true /* Counts as not lost. */
       :: else
       fi;
       c++
    :: else -> break
    od;
    i = 1;
    do
    :: i <= ALL_ITEMS -> assert(!published[i] || committed[i]); i++
    :: else -> break
    od;
    i = 0;
    do
    :: i < LANES ->
       /* Every dead lane was reclaimed, unless a stopped one may still hold its cell. */
       assert(locked[i] || lane_state[i] == LEFT || lane_state[i] == DEAD || kept > 0);
       /* A producer without a fault has published everything, unless no cell is left. */
       assert(i >= PRODUCERS || !locked[i] || stopped[i] || kept == CELLS);
       i++
    :: else -> break
    od
  }
}

init {
  atomic {
    byte i;
    do
    :: i < LANES ->
       locked[i] = true;
       if
       :: i < FIRST_CONSUMER -> run producer(i)
       :: i >= FIRST_CONSUMER && i < FIRST_REAPER -> run consumer(i)
       :: else -> run reaper(i)
       fi;
       i++
    :: else -> break
    od;
    i = 0;
    run faults();
    run at_rest()
  }
}
