/* Entry points whose memory cannot be capped are refused altogether. */
#include "entry/shim.h"

CUresult
cgpu_reject(enum cgpu_reject reason, const char *name)
{
    static const struct {
        enum cgpu_log log;
        const char *text;
    } reasons[] = {
        [CGPU_REJECT_MANAGED] = {CGPU_LOG_MANAGED,
                                 "managed memory is not available here, refused: "},
        [CGPU_REJECT_CHECKPOINT] = {CGPU_LOG_CHECKPOINT,
                                    "checkpoints are not available here, refused: "},
        [CGPU_REJECT_UNKNOWN] = {CGPU_LOG_LOCATION,
                                 "memory of a kind that is newer than cgpu, refused: "},
        [CGPU_REJECT_POOLS] = {CGPU_LOG_LOCATION,
                               "memory pools need driver 465 or later here, refused: "},
    };
    cgpu_log_text(reasons[reason].log, reasons[reason].text, name);
    return CUDA_ERROR_NOT_SUPPORTED;
}
