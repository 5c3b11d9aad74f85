# Does test_model.c see faults of amp.h? Faults that 0.4.0 to 0.7.0 mended, and similar ones, are
# planted in a copy, one at a time, and its sequences must find each. MemorySanitizer and
# ThreadSanitizer must see nothing in its sequences.
# usage: [CC=COMPILER] [CLANG=COMPILER] [PLANT_ONLY=1] model_self.sh OUTDIR, in the repository's root
# PLANT_ONLY: are the lines there that faults change? self.sh asks.
suite=model_self out=${1:?usage: model_self.sh OUTDIR}
. tests/lib.sh
cc=${CC:-cc}
printf '#define AMP_IMPLEMENTATION\n#include "amp.h"\n' > "$out/amp.c"
[ -n "$PLANT_ONLY" ] || $cc -std=c99 -O1 -I. -c tests/unit/test_model.c -o "$out/model.o" > "$out/log" 2>&1 ||
    { fail "test_model.c compiles"; finish; }

finds() { # do sequences find something in the copy? 2: it does not compile
    $cc -std=c99 -O0 -DAMP_DEBUG -DAMP_NO_VECTORS -I"$out" -c "$out/amp.c" -o "$out/amp.o" &&
        $cc "$out/model.o" "$out/amp.o" -o "$out/model" -lm -pthread || return 2
    for how in '10000 none' '300 allocations' '300 reads' '300 sums'; do
        timeout 100 "$out/model" 1 $how || return 0
    done
    return 1
}

# fault TEXT FUNCTION SED-SCRIPT: the script changes lines of the function
fault() {
    sed -E -e "/^[A-Za-z].*[ *]$2\(/,/^}/{
$3
}" amp.h > "$out/amp.h"
    if cmp -s amp.h "$out/amp.h"; then fail "$1: there is no such line any more"; return; fi
    [ -n "$PLANT_ONLY" ] || finds > "$out/log" 2>&1
    check "$1" $?
}

# sanitized NAME COMPILER FLAGS: its sequences, and those with faults, under another sanitizer
sanitized() {
    if ! works "$2" "$3"; then skip "$1" "$2 has none"; return; fi
    try "$1 sees nothing" sh -c "$2 -std=c99 -O1 -g1 $3 -fno-sanitize-recover=all -I. '$out/amp.c' \
        tests/unit/test_model.c -o '$out/$1' -lm -pthread && '$out/$1' 1 2000 &&
        '$out/$1' 1 50 allocations && '$out/$1' 1 50 reads && '$out/$1' 1 50 sums"
}
if [ -z "$PLANT_ONLY" ]; then
    cp amp.h "$out/amp.h"
    sanitized memory "${CLANG:-clang}" '-fsanitize=memory -DAMP_NO_VECTORS -DTEST_RAW'
    sanitized thread "$cc" -fsanitize=thread
    finds > "$out/log" 2>&1
    [ $? = 1 ]
    check 'without a fault nothing is found' $?
fi

# Ranks, and runs of other programs
fault 'the largest magnitude of one rank counts' ampi_decide 's/\(&next, largest, inv\)/(\&next, 0u, inv)/'
fault 'an overflow of another rank does not skip' ampi_decide \
    's/asked != 0u, skips/asked == 1u, skips/'
fault 'an error of reduce_fn is lost' ampi_reduce_ranks 's/result  *= opt->desc.reduce_fn\(/(void)opt->desc.reduce_fn(/'
fault 'a run of another program needs no moments' amp_optimizer_set_steps \
    's/slot->moments_missing = .*/slot->moments_missing = 0;/'
fault 'a run of another program has the report of this one' amp_optimizer_set_steps 's/ampi_clear_history\(opt->plan\);/(void)0;/'
# Rows
fault 'a row that is not there is no skip where the scaler is disabled' ampi_decide \
    's/disabled \? \(asked & AMPI_BAD_ROW\) != 0u/disabled ? 0u/'
fault 'more rows than max_rows are taken' ampi_sum_rows 's/s->early   = .*/s->early = 0;/'
fault 'a segment of a row has 65 entries' ampi_sum_row 's/k < AMPI_SEGMENT/k < AMPI_SEGMENT + 1/'
fault 'the first bad row is the last' ampi_sum_rows \
    's/if \(s->rows\[i\] >= s->table\)/if (!s->early \&\& s->rows[i] >= s->table)/'
fault 'a weight decay of 0 is the optimizer'"'"'s in rows' ampi_append 's/tensor->rows \? 0.0 : //'
fault 'zero_grad leaves the count of rows' ampi_cpu_update \
    's/if \(ends && plan->zero_grad && slot->sparse\) .*/if (0) {}/'
fault 'AMP_NO_GRAD leaves rows' ampi_given 's/slot->values \? /1 ? /'
# Storage
fault 'a storage whose model is the weight is taken' ampi_storage_check 's/t->model \? t->model_type : //'
fault 'keep_fp32 takes no moments of a storage of its own' ampi_storage_of \
    's/t->keep_fp32 && !kept/t->keep_fp32/'
fault 'weights that rebind brought before a load are there after it' ampi_load_all \
    's/slot->weight = NULL;.*//'
fault 'the seed is not saved' amp_optimizer_save 's/if \(opt->plan->stochastic\)/if (0)/'
fault 'scales of groups are not saved' ampi_archive_arrays 's/k < sizeof all/k + 2 < sizeof all/'
# Files
fault 'nesterov is not loaded' ampi_keep_own \
    's/(control.seen_updates = 0);/\1, state->control.nesterov = a->own.control.nesterov;/'
fault 'skips in a row are lost' ampi_archive_state \
    's/ampi_number\(a, /if (ampi_fields[i].at != offsetof(ampi_state, control.skipped_in_a_row)) &/'
fault 'a learning rate of its own is lost' ampi_keep_own \
    's/if \(!state->has_lr\) state->has_lr = .*//'
fault 'a learning rate in the file is not taken' ampi_load_all 's/plan->has_lr = .*/(void)0;/'
fault 'lr_scale is not loaded' ampi_load_all 's/AMPI_TRY\(ampi_send\(b, &there->lr_scale.*//'
fault 'weight_decay is not loaded' ampi_archive_tensor 's/slot->weight_decay = weight_decay;//'
fault 'the moments are not loaded' ampi_archive_section \
    's/if \(!at \|\| a->pass == AMPI_VERIFY\)/if (!at || a->pass == AMPI_VERIFY || (a->pass == AMPI_LOAD \&\& s->x != slot->master.data))/'
fault 'models are not written after a load' ampi_load_all \
    's/AMPI_TRY\(ampi_write_models\(opt\)\);//'
fault 'a file of a disabled scaler disables' ampi_keep_own 's/ \|\| !s->disabled != !own->disabled//'
fault 'a file of a fixed scale stops one that moves' ampi_keep_own 's/!same \|\| //'
fault 'moments that are missing are forgotten by a file' ampi_archive_storage 's/slot->moments_missing = .*/slot->moments_missing = 0;/'
fault 'a changed body is loaded' ampi_read_body 's/fits && ampi_get_le\(.*\) != a->sum/0/'
fault 'a changed header is loaded' ampi_read_header \
    's/if \(ampi_get_le\(header \+ 24\) != .*/if (0) return AMP_ERROR_CORRUPT;/'
fault 'names are not compared' ampi_name 's/\(rest && memcmp.*/0))/'
fault 'formats are not compared' ampi_archive_storage 's/else if \(file.moments != moments.*/else if (0) {/'
fault 'the kind is not compared' ampi_archive_state \
    's/ampi_same\(a, .*"desc.kind"\);/{ uint64_t x = plan->kind; AMPI_NUMBER(a, x); }/'
fault 'a load that fails leaks' ampi_load_end \
    's/^    ampi_release\(/    if (result == AMP_OK) ampi_release(/'
fault 'a save that fails leaks' amp_optimizer_save \
    's/ampi_release\(/if (a.result == AMP_OK) ampi_release(/'
fault 'an error of write_fn is lost' ampi_write_out 's/a->result = (ampi_fail\()/(void)\1/'
fault 'a report is not saved' amp_optimizer_save 's/if \(opt->plan->record\)/if (0)/'
fault 'a load in an open step' 'amp_optimizer_load(_file)?' \
    's/AMPI_BETWEEN/AMPI_PREPARED/'
# Scalers
fault 'an update counts nothing where the scaler is disabled' ampi_scaler_transition \
    's/if \(s->found_inf/if (s->disabled) {} else if (s->found_inf/'
fault 'found_inf is 1 or nothing' ampi_found_by_user 's/found_inf != 0u/found_inf == 1u/'
fault 'found_inf that was written in an open step is lost' ampi_publish 's/c->next.found_inf = .*//'
fault 'the scale grows before the step ends' ampi_decide \
    's/(c->next = next);/\1, *s = next, c->moves = 0u;/'
fault 'hysteresis: any good step refills' ampi_scaler_move \
    's/\(grow && \(rules & AMPI_REFILL_GROWTH\)\)/1/'
fault 'mxnet: a new scale acts at once' ampi_scaler_move \
    's/\(rules & AMPI_DELAY\) \? live : next/next/'
fault 'max_scale is passed' ampi_scaler_move 's/next > max_scale/0/'
fault 'set_scale leaves stuck' ampi_scaler_replace 's/s->stuck      = 0u;//'
fault 'an update that was forgotten is not counted' ampi_decide 's/c->missed_updates \+= .*//'
fault 'the product is not checked' ampi_product_overflows \
    's/if \(!\(ampi_rules.s. & AMPI_SAFE\)\) return 0;/return 0;/'
# Steps
fault 'a step whose loss nobody has scaled' ampi_check_all 's/ && !plan->scale_use && /  \&\& 0 \&\& /'
fault 'a skipped step writes models' ampi_cpu_update \
    's/!plan->control->gate.skip/(job == AMPI_JOB_PUBLISH || !plan->control->gate.skip)/'
fault 'zero_grad leaves the gradients of a skipped step' ampi_cpu_update \
    's/else if \(ends && plan->zero_grad/else if (moves \&\& ends \&\& plan->zero_grad/'
fault 'gradients are unscaled twice' amp_optimizer_unscale 's/opt->step_open > 1, BAD/0, BAD/'
fault 'the error of begin_step is lost' amp_optimizer_begin_step 's/opt->pending = ampi_last_error.error;/(void)0;/'
fault 'a second begin_step begins anew' ampi_ready 's/phase == AMPI_BETWEEN && opt->step_open/0/'
fault 'unscale_in_place of 16-bit gradients' ampi_fill_slot \
    's/d->unscale_in_place && t->grad_type == AMP_F32/d->unscale_in_place/'
fault 'rebind counts no gradients' ampi_rebind 's/ampi_count_grads\(plan\);//'
fault 'NULL takes a gradient away' ampi_bind \
    's/if \(!grad\) return;/if (!grad) grad = AMP_NO_GRAD;/'
fault 'a frozen tensor gets a gradient' ampi_can_bind \
    's/grad && grad != AMP_NO_GRAD && t->frozen/0/'
fault 'a gradient that was never given is none' ampi_can_step 's/if \(plan->unbound\)/if (0)/'
fault 'the last gradient that was never given is the only one' ampi_count_grads 's/while \(i-- > 0\)/if (i-- > 0)/'
fault 'a step writes copies of frozen tensors' ampi_cpu_update 's/slot->frozen \|\| //'
fault 'a frozen tensor that moves keeps its copy' ampi_rebind 's/if \(s->frozen == 1u && s->model/if (0 \&\& s->model/'
fault 'a frozen tensor reads its gradient' ampi_append 's/if \(tensor->frozen\).*//'
fault 'frozen of the whole counts for nothing' ampi_tensor_at 's/t.frozen .*//'
fault 'a negative number is the default' ampi_or 's/x < 0.0 \? 0.0 : //'
fault 'a session counts no product' ampi_gemm_autocast 's/\+\+\*\(rounded/(void)*(rounded/'
fault 'the bias correction of the step before' ampi_bias \
    's/ampi_power\(beta, step\)/ampi_power(beta, step > 1 ? step - 1 : step)/'
fault 'tiny gradients have a norm of 0' ampi_sums_again 's/max == 0u/1/'
fault 'a norm that overflows is infinite' ampi_sums_again 's/!overflow && //'
fault 'a factor that vanishes steps' ampi_decide \
    's/bad \|= \(uint32_t\)ampi_is_zero\(inv_scale.*//'
fault 'what overlaps is prepared' ampi_no_overlaps 's/if \(r\[i\].begin >= .*\) /if (1) /'
fault 'an add that finds no memory has room' ampi_reserve \
    's/if \(!grown\)/if (!grown) opt->capacity = capacity;\n    if (!grown)/'
fault 'a prepare that fails leaves its plan' amp_optimizer_prepare \
    's/if \(result != AMP_OK\) ampi_rel/if (result == AMP_ERROR_OVERLAP) ampi_rel/'
# Reports
fault 'a wrong row and a sum that is not finite are two overflows' ampi_count_overflow \
    's/m->overflows \+= .*/m->overflows += 2;/'
fault 'what was asked for is an overflow' ampi_record_step 's/r->bad \|\| !c->maxima\[0\] \?/1 ?/'
# Messages
fault 'a bad index leaves an older message' ampi_tensor_ready \
    's/return ampi_refuse\((AMP_[A-Z_]*), /return \1;\n    ampi_refuse(\1, /'
fault 'a call that succeeds tells something' ampi_ready \
    's/return ampi_fail\(/ampi_fail(AMP_ERROR_READ);\n    return ampi_fail(/'
fault 'an error that only its result tells has no message' ampi_fail 's/: ampi_refuse\(.*/: result;/'
fault 'end_step does not repeat what begin_step has told' amp_optimizer_end_step \
    's/ampi_repeat\(&pending\)/pending.result/'
# Sessions
fault 'a session that runs is started' ampi_session_ok 's/ampi_session_runs\(session\), BAD/0, BAD/'
fault 'a weight that is added again keeps its copy' amp_session_add \
    's/^    if \(i < (session->num_entries)\) \{/    if (n \&\& i < \1) return AMP_OK;\n&/'
fault 'changed of NULL means no weight' amp_session_changed 's/if \(weight && !/if (!weight || !/'
finish
