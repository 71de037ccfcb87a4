-- Everybody who bought something in the 26 weeks that end with the period, once each.
-- A purchase keeps its customer active for 25 weeks beside its own, until orders.active_until.
-- People who opted out are returned, too: the pipeline leaves them out and counts them.
SELECT
    customers.id AS customer_id,
    customers.email AS recipient,
    customers.name AS name,
    customers.opted_in AS opted_in
FROM customers
WHERE EXISTS (
    SELECT 1
    FROM orders
    WHERE orders.customer_id = customers.id
      AND orders.ordered_on < :period_end
      AND orders.active_until >= :period_start
)
