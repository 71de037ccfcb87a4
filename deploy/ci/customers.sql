-- The customers of the gate's period: SQL that SQLite takes, with the tables that your own queries read.
-- These fit the packaged specification. Keep them few, and cover what your customers are really like.
CREATE TABLE customers (id TEXT PRIMARY KEY, email TEXT, name TEXT, opted_in BOOLEAN NOT NULL);
CREATE TABLE orders (
    customer_id TEXT NOT NULL, ordered_on DATE NOT NULL, cds INTEGER NOT NULL, cents INTEGER NOT NULL,
    active_until DATE NOT NULL
);

-- Forty who bought something in 1997-W12 (17 to 23 March), on each of its days.
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 40)
INSERT INTO customers SELECT 'customer-' || n, 'reader.' || n || '@example.com', 'Reader ' || n, true FROM numbers;
INSERT INTO orders
SELECT id, date('1997-03-17', '+' || (rowid % 7) || ' days'), 1 + rowid % 3, 1299 * (1 + rowid % 3), '1997-09-15'
FROM customers;

-- And those who get none: opted out, no usable address, nothing bought in this week, bought just outside it.
INSERT INTO customers VALUES
    ('opted-out', 'no.thanks@example.com', 'Opted Out', false),
    ('no-address', NULL, 'No Address', true),
    ('typing-error', 'reader.example.com', 'Typing Error', true),
    ('earlier', 'earlier@example.com', 'Earlier', true),
    ('later', 'later@example.com', 'Later', true);
INSERT INTO orders VALUES
    ('opted-out', '1997-03-18', 1, 1299, '1997-09-09'),
    ('no-address', '1997-03-18', 1, 1299, '1997-09-09'),
    ('typing-error', '1997-03-18', 1, 1299, '1997-09-09'),
    ('earlier', '1997-03-16', 1, 1299, '1997-09-07'),
    ('later', '1997-03-24', 1, 1299, '1997-09-15');
