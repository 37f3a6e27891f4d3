"""What ships in artifacts: threads, checkpoints, caches, gf-train."""

from tests.faults.fault import Fault

C_FILES = "tests/runtime/test_c_files.py"
CHECKPOINT = "tests/runtime/test_step_checkpoint.py"
CACHE = "tests/runtime/test_feature_cache.py"
TRAINER = "tests/runtime/test_gf_train.py"
SAFETY = "tests/runtime/test_gf_train_safety.py"
SYNCED = "tests/runtime/test_synced.py"
THREADS = "tests/runtime/test_step_threads.py"

FAULTS = (
    Fault(
        "c-checkpoint-not-synced",
        "gfcompile/runtime/gf_generations.c",
        "if (fsync(r->file) || (keep",
        "if ((keep",
        "a checkpoint takes its name before its bytes are on the disk",
        (SYNCED, C_FILES),
    ),
    Fault(
        "c-previous-not-kept",
        "gfcompile/runtime/gf_generations.c",
        "(keep && keep_previous(r))",
        "(keep < 0 && keep_previous(r))",
        "gf-train keeps no generation before the newest",
        (f"{TRAINER}::test_a_damaged_checkpoint_gives_way_to_the_one_before",),
    ),
    Fault(
        "c-checksum-not-compared",
        "gfcompile/runtime/gf_checkpoint.c",
        "if (!gf_sha256_is_sealed(file->map.data, file->map.bytes, DIGITS_AT))",
        "if (!gf_sha256_is_sealed(file->map.data, file->map.bytes, DIGITS_AT) && !claimed)",
        "C loads a checkpoint whose bytes were changed",
        (C_FILES,),
    ),
    Fault(
        "c-files-not-compared",
        "gfcompile/runtime/gf_files.c",
        "if (code || gf_manifest_fits(manifest, name, map->data, map->bytes)) return code;",
        "if (code || gf_manifest_fits(manifest, name, map->data, map->bytes) || name) return code;",
        "C opens an artifact whose weights were changed",
        (f"{C_FILES}::test_a_folder_that_is_not_what_was_compiled", "tests/runtime/test_damage.py"),
    ),
    Fault(
        "damaged-newest-becomes-previous",
        "gfcompile/runtime/gf_checkpoint.c",
        "    code = check_seal(path, &file);\n    gf_tensorfile_close(&file);",
        "    gf_tensorfile_close(&file);",
        "a damaged checkpoint takes the place of the whole one before it",
        (f"{TRAINER}::test_a_damaged_checkpoint_takes_the_place_of_no_whole_one",),
    ),
    Fault(
        "checkpoint-not-synced",
        "gfcompile/runtime/generations.py",
        "        os.fsync(file)\n",
        "",
        "Python's checkpoint takes its name before its bytes are on the disk",
        (f"{CHECKPOINT}::test_a_failed_write_keeps_the_old_file", CHECKPOINT),
    ),
    Fault(
        "folder-not-synced",
        "gfcompile/runtime/generations.py",
        "        os.fsync(folder)\n",
        "        os.fstat(folder)\n",
        "after a power cut the folder may still name the old checkpoint, or none",
        (SYNCED, CHECKPOINT),
    ),
    Fault(
        "checksum-not-compared",
        "gfcompile/runtime/checkpoint.py",
        "if not file.is_sealed():",
        "if not file.metadata:",
        "Python loads a checkpoint whose bytes were changed",
        (f"{CHECKPOINT}::test_every_flipped_or_missing_byte_is_noticed",),
    ),
    Fault(
        "draws-begin-anew",
        "gfcompile/runtime/step.py",
        "draws = Draws(*(progress.draws or (before.seed, progress.steps, before.epoch)))",
        "draws = Draws(*((progress.draws or (before.seed,))[0], 0, before.epoch))",
        "after a checkpoint the drawn channels begin from the first step's again",
        ("tests/end_to_end/test_sparse.py::test_a_checkpoint_goes_on_with_the_draws",),
    ),
    Fault(
        "every-step-draws-the-same",
        "gfcompile/runtime/gf_draws.c",
        "time = (uint64_t)now->steps;",
        "time = (uint64_t)now->epoch;",
        "channels are drawn once an epoch where each step should draw",
        ("tests/end_to_end/test_sparse.py::test_draws_are_those_of_the_oracle",),
    ),
    Fault(
        "announced-before-stored",
        "gfcompile/runtime/feature_cache.py",
        "            for name, array in rows.items():\n"
        "                self._files[name].write(indices, array)\n"
        "            self._files[KNOWN].write(indices, _checksums(rows))\n",
        "            self._files[KNOWN].write(indices, _checksums(rows))\n"
        "            for name, array in rows.items():\n"
        "                self._files[name].write(indices, array)\n",
        "an interruption leaves samples that are known and not there",
        (CACHE,),
    ),
    Fault(
        "rows-not-synced",
        "gfcompile/runtime/feature_cache.py",
        "        os.fdatasync(self._descriptor)\n",
        "",
        "rows are announced before they are on the disk",
        (f"{CACHE}::test_rows_are_on_the_disk_before_they_are_announced", CACHE),
    ),
    Fault(
        "caller-does-not-wait",
        "gfcompile/runtime/gf_pool.c",
        "if (atomic_fetch_add(&pool.inside, CLOSED) > 0) gate_wait",
        "if (atomic_fetch_add(&pool.inside, CLOSED) > GF_MAX_THREADS) gate_wait",
        "a kernel returns while other threads still write its result",
        (f"{THREADS}::test_under_a_sanitizer", THREADS),
    ),
    Fault(
        "last-tasks-left-out",
        "gfcompile/runtime/gf_pool.c",
        "(int)((int64_t)tasks * (i + 1) / lanes)",
        "tasks / lanes * (i + 1)",
        "tasks that do not divide among the threads are never run",
        (THREADS, "tests/runtime/test_step_numbers.py"),
    ),
    Fault(
        "last-value-not-looked-at",
        "gfcompile/runtime/gf_finite.c",
        "for (size_t at = 0; at < value->bytes; at += width)",
        "for (size_t at = 0; at + width < value->bytes; at += width)",
        "a tensor whose last value is NaN is kept",
        ("tests/runtime/test_divergence.py",),
    ),
    Fault(
        "padding-counts",
        "gfcompile/runtime/train/training.c",
        "((float *)t->inputs[i])[slot] = slot < count;",
        "((float *)t->inputs[i])[slot] = 1;",
        "gf-train lets the padding of a short batch count",
        (f"{TRAINER}::test_it_trains_as_the_python_wrapper_does",),
    ),
    Fault(
        "one-order-for-all-epochs",
        "gfcompile/runtime/train/training.c",
        "state = draw(&state) + (uint64_t)t->epoch;",
        "state = draw(&state);",
        "gf-train shows the samples in the same order in every epoch",
        (f"{TRAINER}::test_it_trains_as_the_python_wrapper_does", TRAINER),
    ),
    Fault(
        "resumes-at-the-first-batch",
        "gfcompile/runtime/train/training.c",
        "t->at = size == t->batch ? at : 0;",
        "t->at = 0;",
        "a continued epoch begins again",
        (f"{TRAINER}::test_an_interrupted_run_ends_in_the_same_bits",),
    ),
    Fault(
        "images-turned",
        "gfcompile/runtime/train/samples.c",
        "(row * data->wide + column) * data->channels + from",
        "(column * data->wide + row) * data->channels + from",
        "gf-train exchanges rows and columns of images stored channels last",
        ("tests/end_to_end/test_trainer.py::test_images_stored_channels_last",),
    ),
    Fault(
        "padding-of-zeros",
        "gfcompile/runtime/batch.py",
        "slot.staging[len(array) :] = slot.staging[:1]",
        "slot.staging[len(array) :] = 0",
        "a short batch is padded with zeros, which may divide by zero",
        ("tests/runtime/test_step_numbers.py",),
    ),
    Fault(
        "database-not-synced",
        "gfcompile/codegen/tuned/database.py",
        "    os.fsync(descriptor)\n",
        "",
        "a trial is said to be kept before it is on the disk",
        ("tests/tuning/test_database.py",),
    ),
)
