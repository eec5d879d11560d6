"""The Lua scripts of the Redis store: each runs whole or not at all, and none decides anything but whether to write.

A stream is a hash (row as JSON, its check, counters, memory), a list of sealed events, and a hash of snapshots. Beside
them stand the names of each tenant's streams, the names of all, those with a tail, those that will expire, by when, and
a random name of each delete that the append-only file may still hold.
Every writing script compares the writer's epoch first: one that was taken over is refused, even if it wakes up late.
"""

from __future__ import annotations

STALE = "STALE_EPOCH"

_GUARD = f"""
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return redis.error_reply('{STALE}') end
"""

# KEYS: epoch   ARGV: epoch
# a write like any other, so that whatever stands against one stands against this
PROBE = (
    _GUARD
    + """
redis.call('SET', KEYS[1], ARGV[1])
return 1
"""
)

# KEYS: epoch, stream, events, snapshots, names of the tenant, names of all, names with a tail, names that expire,
#       deletes to purge
# ARGV: epoch, check before, check after, row, next_seq, consolidated_seq, has memory, memory, drop all, keep from,
#       stream's name, whole name, anew, when it expires or nothing, name of the purge, events...
WRITE = (
    _GUARD
    + """
local before = redis.call('HGET', KEYS[2], 'check') or ''
if before ~= ARGV[2] then return 0 end
if ARGV[13] == '1' then
  redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
  redis.call('SADD', KEYS[9], ARGV[15])
end
redis.call('HSET', KEYS[2], 'check', ARGV[3], 'row', ARGV[4], 'next', ARGV[5], 'done', ARGV[6])
if ARGV[7] == '1' then redis.call('HSET', KEYS[2], 'memory', ARGV[8]) end
if ARGV[9] == '1' then redis.call('DEL', KEYS[3]) end
for i = 16, #ARGV do redis.call('RPUSH', KEYS[3], ARGV[i]) end
local first = tonumber(ARGV[5]) - redis.call('LLEN', KEYS[3])
local dropped = tonumber(ARGV[10]) - first
if dropped > 0 then redis.call('LTRIM', KEYS[3], dropped, -1) end
redis.call('ZADD', KEYS[5], 0, ARGV[11])
redis.call('ZADD', KEYS[6], 0, ARGV[12])
if ARGV[5] ~= ARGV[6] then redis.call('SADD', KEYS[7], ARGV[12]) else redis.call('SREM', KEYS[7], ARGV[12]) end
if ARGV[14] ~= '' then redis.call('ZADD', KEYS[8], ARGV[14], ARGV[12]) else redis.call('ZREM', KEYS[8], ARGV[12]) end
return 1
"""
)

# KEYS: stream, events   ARGV: whether all events are wanted
READ = """
local row = redis.call('HMGET', KEYS[1], 'row', 'check', 'memory', 'next', 'done')
if not row[1] and not row[2] then return false end
local tail = tonumber(row[4]) - tonumber(row[5])
local events = {}
if ARGV[1] == '1' then events = redis.call('LRANGE', KEYS[2], 0, -1)
elseif tail > 0 then events = redis.call('LRANGE', KEYS[2], -tail, -1) end
return {row[1], row[2], row[3], events}
"""

# KEYS: epoch, stream, events, snapshots, names of the tenant, names of all, names with a tail, names that expire,
#       deletes to purge
# ARGV: epoch, stream's name, whole name, the check it must have or nothing, name of the purge
DELETE = (
    _GUARD
    + """
if ARGV[4] ~= '' and redis.call('HGET', KEYS[2], 'check') ~= ARGV[4] then return 0 end
local existed = redis.call('EXISTS', KEYS[2])
redis.call('UNLINK', KEYS[2], KEYS[3], KEYS[4])
redis.call('ZREM', KEYS[5], ARGV[2])
redis.call('ZREM', KEYS[6], ARGV[3])
redis.call('SREM', KEYS[7], ARGV[3])
redis.call('ZREM', KEYS[8], ARGV[3])
if existed == 1 then redis.call('SADD', KEYS[9], ARGV[5]) end
return existed
"""
)

# KEYS: epoch, stream, snapshots   ARGV: epoch, name, archive, most, birth of the stream
SNAPSHOT = (
    _GUARD
    + """
local row = redis.call('HGET', KEYS[2], 'row')
if not row or cjson.decode(row)['birth'] ~= ARGV[5] then return 0 end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 0 and redis.call('HLEN', KEYS[3]) >= tonumber(ARGV[4]) then return 0 end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
return 1
"""
)
